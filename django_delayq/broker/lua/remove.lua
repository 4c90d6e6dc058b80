-- PURPOSE  Mirror the end of definitions: disabled, deleted, moved away, exhausted.
-- KEYS     the constant list
-- ARGV     per member: member, generation, expected ('' | see upsert)
-- RETURNS  per member: REMOVED, GONE (was not there), OLD (a newer definition is known),
--          LEASED or DUE (only the generation was stored: the holder or next claimer records it and drops it)
-- COST     O(members · log N)
-- ATOMIC BECAUSE a claim may come between the look and the removal.
local now, replies = server_ms(), {}
for i = 1, #ARGV, 3 do
  local member, generation, expected = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  local text = call('HGET', GEN, member)
  local known, stored = tonumber(text or ''), tonumber(call('HGET', POINT, member) or '')
  local score = call('ZSCORE', DUE, member)
  if known and generation < known and not (expected ~= '' and expected == text) then
    replies[#replies + 1] = 'OLD'
  elseif score and call('HEXISTS', LEASE, member) == 1 then
    call('HSET', GEN, member, int(generation))
    replies[#replies + 1] = 'LEASED'
  elseif score and stored and stored <= now then
    call('HSET', GEN, member, int(generation))
    replies[#replies + 1] = 'DUE'
  else
    drop({member})
    replies[#replies + 1] = (score or stored) and 'REMOVED' or 'GONE'
  end
end
return replies
