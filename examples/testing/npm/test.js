// node --test
'use strict';
const assert = require('node:assert');
const net = require('node:net');
const { test } = require('node:test');
const { RocketMQ } = require('.');

const answers = address => new Promise(done => {
  const [host, port] = address.split(':');
  const socket = net.connect(port, host, () => { socket.destroy(); done(true); });
  socket.on('error', () => done(false));
});

test('a server with faults, which stops and starts again', async () => {
  const server = await RocketMQ.start('--topic=orders', '--grpc=127.0.0.1:0');
  try {
    assert.match(server.grpc, /^127\.0\.0\.1:\d+$/);
    assert.deepEqual(await server.messages('orders'), []);
    await assert.rejects(server.messages('odrers'), /odrers/);
    await server.refuseSends({ times: 2, topic: 'orders' });
    await assert.rejects(server.refuseSends({ times: -2 }), /times/);
    await server.acceptSends();
    await server.slow(10);
    await server.slow(0);
    await server.pause();
    await server.resume();
    await server.stop();
    assert.equal(await answers(server.address), false);
    await server.start();
    assert.equal(await answers(server.address), true);
    await server.restart();
  } finally {
    await server.close();
  }
  assert.equal(await answers(server.address), false);
  await assert.rejects(server.slow(1), /ended/);
  await assert.rejects(RocketMQ.start('--no-such-option'), /ended/);
});
