-- PURPOSE  Mirror the end of definitions: disabled, exhausted ('' mode), deleted or moved away ('gone' mode).
-- KEYS     the constant list
-- ARGV     mode ('' | 'gone'), then per member (in '' mode at most once): member, generation, expected ('' | see upsert)
-- RETURNS  per member: REMOVED, GONE (was not there), OLD (a newer definition is known),
--          LEASED or DUE (only the generation was stored: the holder or next claimer records it and drops it);
--          in 'gone' mode nobody has anything to record: only a live lease keeps the member, LEASED, as it is
-- COST     O(members · log N)
-- ATOMIC BECAUSE a claim may come between the look and the removal.
local now, mode, members = server_ms(), ARGV[1], {}
for i = 2, #ARGV, 3 do members[#members + 1] = ARGV[i] end
if #members == 0 then return {} end
local scores, holders = scores_of(members), call('HMGET', LEASE, unpack(members))
local known_now, stored_now = call('HMGET', GEN, unpack(members)), call('HMGET', POINT, unpack(members))
local replies, generations, gone = {}, {}, {}
for i, member in ipairs(members) do
  local generation, expected = tonumber(ARGV[3 * i]), ARGV[3 * i + 1]
  local known, stored, score = whole(known_now[i]), whole(stored_now[i]), scores[i]
  local leased = score and not unsound(score, now) and holders[i]
  local result
  if known and generation < known and not (expected ~= '' and whole(expected) == known) then
    result = 'OLD'
  elseif leased and (mode == '' or score > now and holders[i] ~= '-') then
    result = 'LEASED'
  elseif score and stored and stored <= now and mode == '' then
    result = 'DUE'
  else
    result = (score or stored) and 'REMOVED' or 'GONE'
    gone[#gone + 1] = member
  end
  if mode == '' and (result == 'LEASED' or result == 'DUE') then
    generations[#generations + 1], generations[#generations + 2] = member, int(generation)
  end
  replies[i] = result
end
if #generations > 0 then call('HSET', GEN, unpack(generations)) end
if #gone > 0 then drop(gone) end
return replies
