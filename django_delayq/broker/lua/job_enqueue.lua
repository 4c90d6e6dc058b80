-- PURPOSE  Add jobs. One whose unique key is that of a waiting job is not added; nor one that is there already.
-- KEYS     the constant list of jobs; in mode 'again' followed by each job's result
-- ARGV     channel, shard, epoch as the caller knows it, mode ('' | 'again': the same was sent before, without a reply),
--          then per job: member, payload, how ('' | 'wake_ms priority unique': 0 = now; a key of '' is none)
-- RETURNS  how many, where all were added; else the epoch, then per job: '' added, or the member that stands for it;
--          where the epoch is another: only the epoch
-- COST     O(jobs · log N)
-- ATOMIC BECAUSE two jobs with one unique key must not both be added, and no job may be there without its payload.
local epoch = call('GET', EPOCH) or ''
if epoch ~= ARGV[3] then epoch = string.gsub(epoch, '^building:', '') end
if epoch ~= ARGV[3] then return {epoch} end
local members, again = {}, ARGV[4] == 'again'
for i = 5, #ARGV, 3 do members[#members + 1] = ARGV[i] end
if #members == 0 then return {epoch} end
local us = server_us()
local now = math.floor(us / 1000)
local reply, added, count, payloads, ranks, ready, later, first = {epoch}, {}, 0, {}, {}, {}, {}, nil
for n, there in ipairs(call('HMGET', PAYLOAD, unpack(members))) do
  local member, payload, how = members[n], ARGV[3 * n + 3], ARGV[3 * n + 4]
  local wake, rank, key = 0, '0', ''
  if how ~= '' then
    wake, rank, key = string.match(how, '^(%-?%d+) (%-?%d+) (.*)$')
    wake = tonumber(wake)
  end
  local standing = key ~= '' and call('HGET', UNIQUE, 'k' .. key)
  if standing and (added[standing] or call('HEXISTS', PAYLOAD, standing) == 1) then
    reply[n + 1] = standing
  elseif there or added[member] or again and call('EXISTS', KEYS[COMMON + n]) == 1 then
    reply[n + 1] = member
  else
    reply[n + 1], added[member], count = '', true, count + 1
    payloads[#payloads + 1], payloads[#payloads + 2] = member, payload
    if rank ~= '0' then ranks[#ranks + 1], ranks[#ranks + 2] = member, rank end
    if key ~= '' then call('HSET', UNIQUE, 'k' .. key, member, member, 'k' .. key) end
    if wake > now then
      later[#later + 1], later[#later + 2] = int(wake), member
    else
      wake, ready[#ready + 1], ready[#ready + 2] = now, int(rank == '0' and us + n or turn(us + n, rank)), member
    end
    first = math.min(first or wake, wake)
  end
end
if count == 0 then return reply end
if count == #members then reply = count end
call('HSET', PAYLOAD, unpack(payloads))
if #ranks > 0 then call('HSET', PRIORITY, unpack(ranks)) end
if #ready > 0 then call('ZADD', READY, unpack(ready)) end
if #later > 0 then call('ZADD', JOBS, unpack(later)) end
-- POINTER stands for all that was there, so that it moves forward or stays. Without it there was nothing, or it was lost.
local known = tonumber(call('ZSCORE', DUE, POINTER) or '')
if known and known <= first then return reply end
if known then call('ZADD', DUE, int(first), POINTER) else first = point(false, now) end
if call('ZRANGE', DUE, 0, 0)[1] == POINTER then call('PUBLISH', ARGV[1], ARGV[2] .. ' ' .. int(first)) end
return reply
