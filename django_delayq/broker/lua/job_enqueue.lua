-- PURPOSE  Add jobs. One whose unique key is that of a waiting job is not added; nor one that is there already.
-- KEYS     the constant list of jobs; in mode 'again' followed by each job's result
-- ARGV     channel, place, epoch as the caller knows it, mode ('' | 'again': the same was sent before, without a reply),
--          then per job: member, wake_ms (0 = now), priority, unique | '', payload
-- RETURNS  epoch, then per job: '' added, or the member that stands for it; where the epoch is another: only the epoch
-- COST     O(jobs · log N)
-- ATOMIC BECAUSE two jobs with one unique key must not both be added, and no job may be there without its payload.
local epoch = string.gsub(call('GET', EPOCH) or '', '^building:', '')
if epoch ~= ARGV[3] then return {epoch} end
local us, before = server_us(), head()
local reply, added, wakes, priority, again = {epoch}, {}, {}, {}, ARGV[4] == 'again'
for i = 5, #ARGV, 5 do
  local member, wake, rank, key, payload = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local at = (i - 5) / 5 + 1
  local standing = key ~= '' and call('HGET', UNIQUE, 'k' .. key)
  if standing and call('HEXISTS', PAYLOAD, standing) == 1 then
    reply[at + 1] = standing
  elseif again and call('EXISTS', KEYS[COMMON + at]) == 1 or call('HSETNX', PAYLOAD, member, payload) == 0 then
    reply[at + 1] = member
  else
    reply[at + 1], added[#added + 1], wakes[#wakes + 1] = '', member, wake
    if rank ~= '0' then priority[#priority + 1], priority[#priority + 2] = member, rank end
    if key ~= '' then call('HSET', UNIQUE, 'k' .. key, member, member, 'k' .. key) end
  end
end
if #priority > 0 then call('HSET', PRIORITY, unpack(priority)) end
if #added > 0 then
  await(added, wakes, us)
  point(false, math.floor(us / 1000))
end
hint(before, ARGV[1], ARGV[2])
return reply
