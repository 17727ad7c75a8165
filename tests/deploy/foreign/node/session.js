'use strict';
// A sender's session: what is not acknowledged, and what may be sent. No I/O; docs/reference/wire.md has the rules.

const MOST_FRAMES = 8; // on the way at once; the protocol allows 64
const FRAME_MESSAGES = 100;

class SendSession {
  constructor({ topology, id, incarnation }) {
    this.identity = { protocol_version: 1, topology, sender_id: id, incarnation, ack_mode: 'ACK_MODE_QUEUED' };
    this.sessionId = '0';
    this.acknowledged = 0; // the last frame that is known to be accepted
    this.sequence = 0; // the last frame that was made
    this.waiting = new Map(); // task -> messages that are in no frame
    this.inFlight = []; // frames that are not acknowledged
    this.resend = []; // those of them that go again over a new stream
    this.sent = new Map(); // task -> messages and bytes, since the session's start
    this.credit = new Map(); // task -> how many of both may be sent
    this.counts = { accepted: 0, acknowledged: 0, refused: 0 };
  }

  accept(task, payload) {
    if (!this.waiting.has(task)) this.waiting.set(task, []);
    this.waiting.get(task).push({ payload, redelivered: false });
    this.counts.accepted += 1;
  }

  get pending() {
    return this.counts.accepted - this.counts.acknowledged - this.counts.refused;
  }

  // First on every stream.
  hello() {
    return { ...this.identity, acknowledged_sequence: this.acknowledged, session_id: this.sessionId };
  }

  // The receiver knows this session, and says how far it has come; or it does not, and all begins anew.
  welcome(message) {
    this.initial = message.initial_credit;
    if (message.session_id === this.sessionId) {
      this.ack({ ...message, sequence: message.accepted_sequence });
      this.resend = [...this.inFlight];
      return;
    }
    this.sessionId = message.session_id;
    for (const { groups } of this.inFlight.reverse()) {
      for (const { task, messages } of groups) {
        this.waiting.get(task).unshift(...messages.map(({ payload }) => ({ payload, redelivered: true })));
      }
    }
    this.inFlight = [];
    this.resend = [];
    this.acknowledged = 0;
    this.sequence = 0;
    this.sent.clear();
    this.credit.clear();
    this.grant(message.credits);
  }

  // Frames up to a sequence are accepted, but for what was refused; and there is new credit.
  ack({ sequence, credits, refusals }) {
    for (const { task, messages, code, detail } of refusals) {
      this.counts.refused += Number(messages);
      this.counts.acknowledged -= Number(messages); // counted below, with its frame
      process.stderr.write(`${messages} messages to task ${task} refused: ${code}: ${detail}\n`);
    }
    while (this.inFlight.length && this.inFlight[0].sequence <= Number(sequence)) {
      const { groups } = this.inFlight.shift();
      for (const { messages } of groups) this.counts.acknowledged += messages.length;
    }
    this.acknowledged = Math.max(this.acknowledged, Number(sequence));
    this.grant(credits);
  }

  grant(credits) {
    for (const { task, messages, bytes } of credits) this.credit.set(task, { messages, bytes });
  }

  // What to write next; undefined: nothing, for want of messages, of credit or of acknowledgements.
  nextFrame() {
    if (this.resend.length) return wire(this.resend.shift());
    if (this.inFlight.length >= MOST_FRAMES) return undefined;
    const groups = [];
    for (const [task, waiting] of this.waiting) {
      const messages = this.take(task, waiting);
      if (messages.length) groups.push({ task, messages });
    }
    if (!groups.length) return undefined;
    this.sequence += 1;
    this.inFlight.push({ sequence: this.sequence, groups });
    return wire(this.inFlight.at(-1));
  }

  take(task, waiting) {
    const sent = this.sent.get(task) ?? { messages: 0, bytes: 0 };
    const credit = this.credit.get(task) ?? this.initial;
    const messages = [];
    while (
      waiting.length && messages.length < FRAME_MESSAGES
      && sent.messages < Number(credit.messages) && sent.bytes < Number(credit.bytes)
      && waiting[0].redelivered === (messages[0] ?? waiting[0]).redelivered // a mark is one of a whole group
    ) {
      sent.messages += 1;
      sent.bytes += waiting[0].payload.length;
      messages.push(waiting.shift());
    }
    this.sent.set(task, sent);
    return messages;
  }
}

function wire({ sequence, groups }) {
  return {
    sequence,
    groups: groups.map(({ task, messages }) => ({
      task,
      lengths: messages.map(({ payload }) => payload.length),
      data: Buffer.concat(messages.map(({ payload }) => payload)),
      redelivered: messages[0].redelivered,
    })),
  };
}

module.exports = { SendSession };
