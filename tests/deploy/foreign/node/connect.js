'use strict';
// What both programs share: the command line, the channel, and when to try again.

const fs = require('node:fs');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const { parseArgs } = require('node:util');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const PROTO = path.join(__dirname, '..', '..', '..', '..', 'proto');
const FATAL = new Set([
  'PROTOCOL_VERSION', 'WRONG_TOPOLOGY', 'STALE_INCARNATION', 'SUPERSEDED', 'UNKNOWN_TASK', 'TASK_NOT_LOCAL',
]);
const FIRST_WAIT_MILLIS = 50;
const LONGEST_WAIT_MILLIS = 2000;

// The command line: --address host:port or unix:///path, --tasks 1,2, and files for TLS.
function options() {
  const text = { type: 'string' };
  const { values } = parseArgs({
    options: {
      address: text, topology: text, id: text, tasks: text, count: text, ca: text, cert: text, key: text,
    },
  });
  return {
    ...values,
    tasks: values.tasks.split(',').map(Number),
    count: Number(values.count),
    incarnation: String(BigInt(Date.now()) * 1000000n), // grows with every start
  };
}

// A client of the service Messaging. 64-bit numbers are strings: incarnations do not fit a JavaScript number.
function messaging({ address, ca, cert, key }) {
  const definition = loader.loadSync('tuplewire/v1/messaging.proto', {
    includeDirs: [PROTO], keepCase: true, longs: String, enums: String, defaults: true, oneofs: true,
  });
  const { Messaging } = grpc.loadPackageDefinition(definition).tuplewire.v1;
  const credentials = ca
    ? grpc.credentials.createSsl(...[ca, key, cert].map((file) => fs.readFileSync(file)))
    : grpc.credentials.createInsecure();
  return new Messaging(address, credentials, {
    'grpc.keepalive_time_ms': 2000, // finds a hung worker
    'grpc.keepalive_timeout_ms': 2000,
    'grpc.enable_retries': 0, // a session resumes by itself
  });
}

// Opens one stream after the other until done() says that no further one is wanted; returns how many it took.
// carry(call): wires up one stream. Ends the process where the same request would be refused again.
async function keepUp(open, carry, done) {
  let wait = FIRST_WAIT_MILLIS;
  for (let connections = 1; ; connections += 1) {
    const call = open();
    const status = await new Promise((resolve) => {
      call.on('error', () => {}); // the status says the same
      call.on('status', resolve);
      call.on('data', () => { wait = FIRST_WAIT_MILLIS; });
      carry(call);
    });
    if (done()) return connections;
    const [code] = status.metadata.get('tuplewire-error');
    process.stderr.write(`stream ended: ${code ?? grpc.status[status.code]}: ${status.details}\n`);
    if (FATAL.has(code)) process.exit(1);
    await sleep(Math.random() * wait);
    wait = Math.min(2 * wait, LONGEST_WAIT_MILLIS);
  }
}

module.exports = { options, messaging, keepUp };
