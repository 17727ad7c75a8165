'use strict';
// Sends readings to task 42 of a worker, from Node, by nothing but the worker's .proto files; see fan_in.py.
// docs/reference/wire.md has the rules; a program that lives long also resumes its session, as they say.
//
// node fan_in.js 127.0.0.1:6700 default node-1 1000

const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [address, topology, name, count] = process.argv.slice(2);
const PROTO = path.join(__dirname, '..', '..', 'proto');
const definition = loader.loadSync('tuplewire/v1/messaging.proto', {
  includeDirs: [PROTO], keepCase: true, longs: String, defaults: true, oneofs: true,
});
const { Messaging } = grpc.loadPackageDefinition(definition).tuplewire.v1;
const readings = Array.from({ length: Number(count) }, (_, n) => Buffer.from(JSON.stringify({ from: name, n })));
const group = { task: 42, lengths: readings.map((each) => each.length), data: Buffer.concat(readings) };

const stream = new Messaging(address, grpc.credentials.createInsecure()).Send();
stream.on('data', ({ kind, ack }) => {
  if (kind === 'welcome') stream.write({ frame: { sequence: 1, groups: [group] } }); // within the first credit
  if (kind === 'ack' && ack.sequence === '1' && !stream.writableEnded) stream.end({ goodbye: {} });
});
stream.on('error', (error) => { console.error(`${address}: ${error.message}`); process.exit(1); });
stream.on('end', () => process.exit(0));
stream.write({ hello: { protocol_version: 1, topology, sender_id: name, incarnation: Date.now() } });
