'use strict';
// Receives the numbers 0, 1, 2, ... of each task, acknowledges them, and ends when so many have come.

const { keepUp, messaging, options } = require('./connect');

const WINDOW_MESSAGES = 100;
const WINDOW_BYTES = 1024 * 1024;

class Consumer {
  constructor({ topology, id, incarnation, tasks, count }) {
    this.identity = { protocol_version: 1, topology, consumer_id: id, incarnation };
    this.workerIncarnation = '0';
    this.received = new Map(tasks.map((task) => [task, 0])); // task -> the last sequence that has come
    this.numbers = new Map(tasks.map((task) => [task, 0])); // task -> the number that comes next
    this.count = count;
    this.repeated = 0;
    this.problems = [];
  }

  get done() {
    return this.problems.length > 0 || [...this.numbers.values()].every((next) => next >= this.count);
  }

  // Acknowledges everything that has come, and makes room for as much again.
  cursors() {
    return [...this.received].map(([task, sequence]) => ({
      task, acknowledged_sequence: sequence, received_sequence: sequence,
      credit_sequence: sequence + WINDOW_MESSAGES, credit_bytes: WINDOW_BYTES,
    }));
  }

  // First on every stream.
  subscribe() {
    return { ...this.identity, tasks: this.cursors(), worker_incarnation: this.workerIncarnation };
  }

  // Delivery starts where the worker says: after what has come, unless the worker has no memory of it.
  subscribed(message) {
    this.workerIncarnation = message.worker_incarnation;
    for (const start of message.tasks) this.received.set(start.task, Number(start.received_sequence));
  }

  frame({ groups }) {
    for (const { task, lengths, data, first_sequence: first } of groups) {
      let sequence = Number(first);
      let start = 0;
      for (const length of lengths) {
        const payload = data.subarray(start, start + length);
        if (sequence === this.received.get(task) + 1) this.message(task, Number(payload), sequence);
        else if (sequence > this.received.get(task)) this.problems.push(`task ${task}: gap before ${sequence}`);
        sequence += 1;
        start += length;
      }
    }
  }

  message(task, number, sequence) {
    this.received.set(task, sequence);
    const next = this.numbers.get(task);
    if (number === next) this.numbers.set(task, next + 1);
    else if (number < next) this.repeated += 1; // a worker that has died had it, or an earlier stream
    else this.problems.push(`task ${task}: ${number} came, not ${next}`);
  }
}

function carry(call, consumer) {
  call.on('data', ({ kind, [kind]: message }) => {
    if (call.writableEnded) return;
    if (kind === 'subscribed') consumer.subscribed(message);
    if (kind === 'frame') consumer.frame(message);
    if (kind === 'subscribed' || kind === 'frame' || kind === 'probe') {
      call.write({ progress: { tasks: consumer.cursors() } });
    }
    if (consumer.done) {
      call.end({ goodbye: {} });
    }
  });
  call.write({ subscribe: consumer.subscribe() });
}

async function main() {
  const settings = options();
  const consumer = new Consumer(settings);
  const client = messaging(settings);
  const connections = await keepUp(
    () => client.Recv(), (call) => carry(call, consumer), () => consumer.done,
  );
  client.close();
  const { numbers, repeated, problems } = consumer;
  console.log(JSON.stringify({ received: Object.fromEntries(numbers), repeated, problems, connections }));
}

main();
