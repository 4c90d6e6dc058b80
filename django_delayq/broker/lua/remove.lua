-- PURPOSE  Mirror the end of definitions: disabled, exhausted ('' mode), deleted or moved away ('gone' mode).
-- KEYS     the constant list
-- ARGV     mode ('' | 'gone'), then per member: member, generation, expected ('' | see upsert)
-- RETURNS  per member: REMOVED, GONE (was not there), OLD (a newer definition is known),
--          LEASED or DUE (only the generation was stored: the holder or next claimer records it and drops it);
--          in 'gone' mode nobody has anything to record: only a live lease keeps the member
-- COST     O(members · log N)
-- ATOMIC BECAUSE a claim may come between the look and the removal.
local now, replies = server_ms(), {}
for i = 2, #ARGV, 3 do
  local member, generation, expected = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  local known, stored = whole(call('HGET', GEN, member)), whole(call('HGET', POINT, member))
  local score = tonumber(call('ZSCORE', DUE, member) or '')
  local leased = score and call('HEXISTS', LEASE, member) == 1
  local result
  if known and generation < known and not (expected ~= '' and whole(expected) == known) then
    result = 'OLD'
  elseif leased and (ARGV[1] == '' or score > now) then
    result = 'LEASED'
  elseif score and stored and stored <= now and ARGV[1] == '' then
    result = 'DUE'
  else
    result = (score or stored) and 'REMOVED' or 'GONE'
    drop({member})
  end
  if result == 'LEASED' or result == 'DUE' then call('HSET', GEN, member, int(generation)) end
  replies[#replies + 1] = result
end
return replies
