/** A message with the fields of `rmqctl read -o jsonl`. */
export interface Message {
  topic: string;
  queue_id: number;
  queue_offset: number;
  tags: string | null;
  keys: string[];
  body: unknown;
  body_encoding: string;
  properties: Record<string, string>;
  [field: string]: unknown;
}

/** `rmqctl serve --temp`, from `start` until `close`. */
export class RocketMQ {
  private constructor();
  static start(...options: string[]): Promise<RocketMQ>;
  /** The name server address for clients. */
  readonly address: string;
  /** The endpoint of clients of RocketMQ 5, with the option `--grpc`. */
  readonly grpc: string | null;
  /** The folder of the store. */
  readonly store: string;
  messages(topic: string): Promise<Message[]>;
  refuseSends(fault?: { times?: number; topic?: string; code?: number }): Promise<void>;
  acceptSends(): Promise<void>;
  slow(ms: number): Promise<void>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  stop(): Promise<void>;
  start(): Promise<void>;
  restart(): Promise<void>;
  close(): Promise<void>;
}
