# Made from the declarations in rmqctl/formats: python -m rmqctl.kernel.constants

cdef enum:
    TOTAL_SIZE_AT = 0
    MAGIC_AT = 4
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    START_SIZE = 40
    MIN_SIZE = 91
    HEAD_SIZE = 88
    BODY_LENGTH_AT = 84
    BORN_HOST_V6 = 16
    STORE_HOST_V6 = 32
    BORN_HOST_V6_MORE = 12
    STORE_HOST_V6_MORE = 12
    PROPERTIES_LENGTH_SIZE = 2
    CRC_MASK = 2147483647
    MAGIC_V1 = 0xdaa320a7
    TOPIC_LENGTH_SIZE_V1 = 1
    MAGIC_V2 = 0xdaa320ab
    TOPIC_LENGTH_SIZE_V2 = 2
