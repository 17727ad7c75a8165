'use strict';
// Sends the numbers 0, 1, 2, ... to each task, and ends when all are acknowledged.

const { keepUp, messaging, options } = require('./connect');
const { SendSession } = require('./session');

const PROBE_MILLIS = 1000;

function carry(call, session) {
  let welcomed = false;
  const pump = () => {
    for (let frame = session.nextFrame(); frame; frame = session.nextFrame()) call.write({ frame });
    if (session.pending === 0) {
      call.end({ goodbye: {} });
    }
  };
  const probe = setInterval(() => {
    if (welcomed && !call.writableEnded) call.write({ probe: { acknowledged_sequence: session.acknowledged } });
  }, PROBE_MILLIS);
  call.on('status', () => clearInterval(probe));
  call.on('data', ({ kind, [kind]: message }) => {
    if (kind === 'welcome') {
      session.welcome(message);
      welcomed = true;
    } else if (kind === 'ack') {
      if (Number(message.previous_sequence) > session.acknowledged) return; // an Ack is lost: a probe follows
      session.ack(message);
    } else if (kind === 'drain' && !call.writableEnded) {
      call.end(); // what is accepted is acknowledged before the stream ends
    }
    if (welcomed && !call.writableEnded) pump();
  });
  call.write({ hello: session.hello() });
}

async function main() {
  const settings = options();
  const session = new SendSession(settings);
  for (let number = 0; number < settings.count; number += 1) {
    for (const task of settings.tasks) session.accept(task, Buffer.from(String(number)));
  }
  const client = messaging(settings);
  const connections = await keepUp(
    () => client.Send(), (call) => carry(call, session), () => session.pending === 0,
  );
  client.close();
  console.log(JSON.stringify({ ...session.counts, pending: session.pending, connections }));
}

main();
