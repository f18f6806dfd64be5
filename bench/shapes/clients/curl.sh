# Two calls on one connection.
call='{"jsonrpc":"2.0","method":"sum","params":{"a":55,"b":21},"id":1}'
json='Content-Type: application/json'
curl -s "$1" -H "$json" -d "$call" --next -s "$1" -H "$json" -d "$call"
