// The JavaScript client: ons.js NAMESERVER TOPIC MODE GROUP; a JSON line for each message.
const fs = require('fs');
const { Consumer, Producer, Message } = require('ali-ons');

const [server, topic, mode, group] = process.argv.slice(2);
const quiet = () => {};
const settings = {
  httpclient: {}, nameSrv: [server],
  accessKeyId: process.env.ACCESS_KEY || '', accessKeySecret: process.env.SECRET_KEY || '',
  logger: { debug: quiet, info: quiet, warn: quiet, error: quiet },
};
const say = value => process.stdout.write(JSON.stringify(value) + '\n');

async function push() {
  const consumer = new Consumer({
    ...settings, consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', quiet);
  let failed = 0;
  consumer.subscribe(topic, '*', async message => {
    say({ queue_id: message.queueId, queue_offset: Number(message.queueOffset),
          body: (message.body || Buffer.alloc(0)).toString('hex'), times: message.reconsumeTimes });
    if (mode === 'retry' && message.reconsumeTimes === 0 && failed < 2) {
      failed++;
      return Consumer.ACTION_RETRY;
    }
    return undefined;
  });
  await consumer.ready();
  for (let n = 0; n < 1200 && !fs.existsSync(process.env.STOP); n++) {
    await new Promise(done => setTimeout(done, 50));
  }
  await consumer.close();
}

async function send() {
  const producer = new Producer({ ...settings, producerGroup: group });
  producer.on('error', quiet);
  await producer.ready();
  try {
    say({ sent: (await producer.send(new Message(topic, 'TagJ', 'hello'))).msgId });
  } catch (error) {
    say({ refused: error.message });
  }
  await producer.close();
}

(mode === 'send' ? send() : push()).then(() => process.exit(0));
