-- PURPOSE  Add what a worker has counted to the hash of a queue's minute, and name that hash in the queue's index.
-- KEYS     the hash, the index of the minutes (not the constant list)
-- ARGV     minute, ttl_ms, most (fields of the hash), then per field: name, its name where the hash is full, and a
--          JSON object of names and numbers
-- RETURNS  1
-- COST     O(fields)
-- ATOMIC BECAUSE several workers add to one field, and a hash that no index names is found by nobody.
local HASH, MINUTES, most = KEYS[1], KEYS[2], tonumber(ARGV[3])
for key, kind in pairs({[HASH] = 'hash', [MINUTES] = 'zset'}) do
  if call('TYPE', key).ok ~= kind then call('DEL', key) end -- somebody else wrote it: nothing here is worth a repair
end
local fields = call('HLEN', HASH)
for i = 4, #ARGV, 3 do
  local name = ARGV[i]
  local before = call('HGET', HASH, name)
  if not before and fields >= most then
    name = ARGV[i + 1]
    before = call('HGET', HASH, name)
  end
  if not before then fields = fields + 1 end
  local sum, sound, old = cjson.decode(ARGV[i + 2]), pcall(cjson.decode, before or '{}')
  for word, number in pairs(sound and type(old) == 'table' and old or {}) do
    if type(word) == 'string' and type(number) == 'number' then sum[word] = (sum[word] or 0) + number end
  end
  call('HSET', HASH, name, cjson.encode(sum))
end
call('PEXPIRE', HASH, ARGV[2])
call('ZADD', MINUTES, ARGV[1], ARGV[1])
call('PEXPIRE', MINUTES, ARGV[2])
return 1
