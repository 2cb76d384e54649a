// A program that uses RocketMQ, tested with Jest against a server of its own, without Java.
const { spawn } = require('child_process');
const readline = require('readline');
const { Producer, Message } = require('ali-ons');

// rmqctl serve --temp: { address, close }. Its standard input is a pipe of this process: it ends
// with it, however that ends. Topics are made beforehand, as ali-ons sends to no others.
async function rocketmq(...topics) {
  const server = spawn(process.env.RMQCTL || 'rmqctl', [
    'serve', '--temp', '--listen', '127.0.0.1:0', '--end-with-stdin', '-o', 'jsonl',
    ...topics.map(name => `--topic=${name}`)],
    { stdio: ['pipe', 'pipe', 'inherit'] });
  const ended = new Promise(done => server.once('exit', done));
  const first = await new Promise((done, failed) => {
    server.once('error', failed);
    ended.then(() => failed(new Error('rmqctl serve did not start')));
    readline.createInterface({ input: server.stdout }).once('line', done);
  });
  return {
    address: JSON.parse(first).ready,
    close: () => { server.kill(); return ended; },
  };
}

let server;
beforeAll(async () => { server = await rocketmq('orders'); });
afterAll(() => server.close());

test('an order is sent', async () => {
  const quiet = () => {};
  const producer = new Producer({
    httpclient: {}, nameSrv: [server.address], producerGroup: 'orders',
    accessKeyId: '', accessKeySecret: '',
    logger: { debug: quiet, info: quiet, warn: quiet, error: quiet } });
  await producer.ready();
  try {
    const sent = await producer.send(new Message('orders', 'new', '{"order": 7}'));
    expect(sent.sendStatus).toBe('SEND_OK');
  } finally {
    await producer.close();
  }
}, 20000);
