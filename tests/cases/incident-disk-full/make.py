from storekit import file_times, golden, whole_config

golden("5.3.3/basic")
whole_config()
file_times(1)
