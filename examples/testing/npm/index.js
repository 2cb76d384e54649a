// `rmqctl serve --temp` for the tests of a program: a server with an empty store, and its faults.
'use strict';
const { execFile, spawn } = require('node:child_process');
const readline = require('node:readline');
const { promisify } = require('node:util');

const program = () => process.env.RMQCTL || 'rmqctl';

class RocketMQ {
  #process; #ended; #waiting = [];

  // More options of `rmqctl serve`, such as `--topic=orders` or `--grpc=127.0.0.1:0`.
  static async start(...options) {
    const server = new RocketMQ();
    await server.#begin(options);
    return server;
  }

  async #begin(options) {
    // Its standard input is a pipe of this process: it ends with it, however that ends.
    this.#process = spawn(program(), ['serve', '--temp', '--listen', '127.0.0.1:0',
      '--end-with-stdin', '-o', 'jsonl', ...options], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#process.stdin.on('error', () => {});  // it has ended, which is heard below
    this.#ended = new Promise(done => {
      this.#process.once('error', done);
      this.#process.once('exit', () => done(new Error('rmqctl serve has ended')));
    });
    this.#ended.then(error => this.#waiting.splice(0).forEach(({ failed }) => failed(error)));
    const lines = readline.createInterface({ input: this.#process.stdout });
    const first = new Promise(done => lines.once('line', done));
    const ready = JSON.parse(await Promise.race([
      first, this.#ended.then(error => { throw error; })]));
    this.address = ready.ready;
    this.grpc = ready.grpc;
    this.store = ready.brokers[0].store;
    lines.on('line', line => this.#hear(JSON.parse(line)));
  }

  #hear(event) {
    if (event.event !== 'order') return;
    const { done, failed } = this.#waiting.shift();
    if (event.order === null) failed(new Error(event.problem));
    else done();
  }

  #order(order, values = {}) {
    return new Promise((done, failed) => {
      if (this.#process.exitCode !== null) { failed(new Error('rmqctl serve has ended')); return; }
      this.#waiting.push({ done, failed });
      this.#process.stdin.write(`${JSON.stringify({ order, ...values })}\n`);
    });
  }

  // All messages of a topic, queue by queue, with the fields of `rmqctl read`.
  async messages(topic) {
    const { stdout } = await promisify(execFile)(program(), ['read', this.store, '--topic', topic,
      '-o', 'jsonl'], { maxBuffer: 1 << 28 });
    return stdout.split('\n').filter(Boolean).map(line => JSON.parse(line));
  }

  // Refuses the next `times` sends, or all of them until acceptSends(); of one topic, or of any.
  refuseSends({ times = -1, topic, code } = {}) {
    return this.#order('refuse_sends', { times, topic, code });
  }

  acceptSends() { return this.refuseSends({ times: 0 }); }

  // Milliseconds before each answer; 0 ends it.
  slow(ms) { return this.#order('slow', { ms }); }

  pause() { return this.#order('pause'); }

  resume() { return this.#order('resume'); }

  stop() { return this.#order('stop'); }

  start() { return this.#order('start'); }

  async restart() { await this.stop(); await this.start(); }

  async close() {
    this.#process.kill();
    this.#process.stdin.end();
    await this.#ended;
  }
}

module.exports = { RocketMQ };
