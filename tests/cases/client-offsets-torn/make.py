from storekit import OUT, put

FOLDER = OUT / ".rocketmq_offsets"
GOOD = ('{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n'
        '\t\t\t"topic":"prices"\n\t\t}:77\n\t}\n}')
put("10.0.0.1@DEFAULT/g1/offsets.json", GOOD[:40].encode(), FOLDER)
put("10.0.0.1@DEFAULT/g1/offsets.json.bak", GOOD.encode(), FOLDER)
