// The official 5.x client: grpc_node.js ENDPOINT TOPIC MODE GROUP; a JSON line for each message.
const fs = require('fs');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require(
  'rocketmq-client-nodejs');

const [endpoints, topic, mode, group] = process.argv.slice(2);
const quiet = () => {};
const settings = {
  endpoints, namespace: '', sslEnabled: false,
  logger: { debug: quiet, info: quiet, warn: quiet, error: quiet },
};
const say = value => process.stdout.write(JSON.stringify(value) + '\n');
const show = message => say({
  id: message.messageId, body: message.body.toString('hex'), tag: message.tag || null,
  attempt: message.deliveryAttempt, bad: Boolean(message.corrupted) });
const goesOn = () => !fs.existsSync(process.env.STOP);

async function simple() {
  const consumer = new SimpleConsumer({
    ...settings, consumerGroup: group, subscriptions: new Map([[topic, '*']]),
    awaitDuration: 1000 });
  await consumer.startup();
  while (goesOn()) {
    for (const message of await consumer.receive(20, 10000)) {
      show(message);
      await consumer.ack(message);
    }
  }
  await consumer.shutdown();
}

async function push() {
  const consumer = new PushConsumer({
    ...settings, consumerGroup: group,
    subscriptions: new Map([[topic, new FilterExpression('*')]]),
    messageListener: { consume: async message => { show(message); return ConsumeResult.SUCCESS; } },
  });
  await consumer.startup();
  while (goesOn()) await new Promise(done => setTimeout(done, 50));
  await consumer.shutdown();
}

async function send() {
  const producer = new Producer({ ...settings, topics: [topic], maxAttempts: 2 });
  await producer.startup();
  try {
    const body = Buffer.from('hello');
    await producer.send({ topic, tag: 'TagA', keys: ['k'], body });
    say({ sent: true });
  } catch (error) {
    say({ refused: error.message });
  }
  await producer.shutdown();
}

(mode === 'send' ? send() : mode === 'push' ? push() : simple()).then(() => process.exit(0));
