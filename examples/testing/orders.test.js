// A program that uses RocketMQ, tested with Jest against a server of its own, without Java.
const { Producer, Message } = require('ali-ons');
const { RocketMQ } = require('./npm');  // or 'rmqctl-testing', once it is installed as a package

let server;
let producer;

beforeAll(async () => {
  server = await RocketMQ.start('--topic=orders');  // ali-ons sends to no topic that is not there
  const quiet = () => {};
  producer = new Producer({
    httpclient: {}, nameSrv: [server.address], producerGroup: 'orders',
    accessKeyId: '', accessKeySecret: '',
    logger: { debug: quiet, info: quiet, warn: quiet, error: quiet } });
  await producer.ready();
});

afterAll(async () => {
  await producer.close();
  await server.close();
});

test('an order is sent', async () => {
  const sent = await producer.send(new Message('orders', 'new', '{"order": 7}'));
  expect(sent.sendStatus).toBe('SEND_OK');
  const [message] = await server.messages('orders');
  expect([message.tags, message.body]).toEqual(['new', '{"order": 7}']);
}, 20000);

test('an order that the broker refuses is an error', async () => {
  await server.refuseSends({ topic: 'orders' });
  try {
    await expect(producer.send(new Message('orders', 'new', '{"order": 8}'))).rejects.toThrow();
  } finally {
    await server.acceptSends();
  }
  expect(await server.messages('orders')).toHaveLength(1);
}, 20000);
