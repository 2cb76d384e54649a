from storekit import golden

golden("5.3.3/transaction")
