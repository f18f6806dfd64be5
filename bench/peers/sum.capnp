# `sum` for the server of Cap'n Proto.
@0xd4f1a6c53b2e9078;

interface Calls {
  sum @0 (a :Int64, b :Int64) -> (result :Int64);
}
