-- PURPOSE  Lease up to `limit` jobs whose turn it is, or repeat the reply to a request whose reply was lost.
-- KEYS     the constant list of jobs (TAKEN is the calling process' own)
-- ARGV     limit, lease_ms, request (grows with each new claim of this process and shard), journal_ms, worker
-- RETURNS  now_ms, head_ms | '' | 'stale', epoch | '', fence | '', then per job:
--          member, payload | '', lapsed ('0'; else an earlier lease ran out: of this holder, '1' or '-' where that is
--          not known any more), reclaims
-- COST     O((limit + what came due) · log N)
-- ATOMIC BECAUSE two workers must never hold a lease on one job, and the journal must tell exactly what was leased.
-- Note [Due first, then its turn]
-- Whatever has come due is moved to READY before anything is taken, at most PROMOTE at a time: so what is urgent goes
-- first however much became due before it.
local PROMOTE = 500
local limit, lease_ms, request = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local us, epoch = server_us(), call('GET', EPOCH) or ''
local now = math.floor(us / 1000)
local reply = {int(now), '', epoch, ''}
if epoch == '' then return reply end
local fence, members, lapsed = replayed(TAKEN, HELD, request, ARGV[5])
if fence == 'stale' then
  reply[2] = fence
  return reply
end
if not fence then
  local due = call('ZRANGE', JOBS, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, PROMOTE, 'WITHSCORES')
  if #due > 0 then
    local names, ready = {}, {}
    for i = 1, #due, 2 do names[#names + 1] = due[i] end
    local ranks = priorities(names)
    for i, member in ipairs(names) do
      ready[2 * i - 1], ready[2 * i] = int(turn((tonumber(due[2 * i]) or 0) * 1000, ranks[i])), member
    end
    call('ZREM', JOBS, unpack(names))
    call('ZADD', READY, unpack(ready))
  end
  members = call('ZRANGE', READY, 0, limit - 1)
end
if #members == 0 then
  point(true, now)
  reply[2] = head()
  return reply
end
local payloads, reclaims, scores = call('HMGET', PAYLOAD, unpack(members)), {}, {}
if call('HLEN', RECLAIMS) > 0 then reclaims = call('HMGET', RECLAIMS, unpack(members)) end
if not fence then
  fence = drawn(now, epoch)
  lapsed = lease(TAKEN, HELD, members, fence, request, ARGV[5], ARGV[4])
  if call('HLEN', UNIQUE) > 0 then
    for _, member in ipairs(members) do give_up_key(member) end
  end
end
for i, member in ipairs(members) do
  scores[2 * i - 1], scores[2 * i] = int(now + lease_ms), member
  local at = 4 * i + 1
  reply[at], reply[at + 1], reply[at + 2], reply[at + 3] = member, payloads[i] or '', lapsed[i], reclaims[i] or '0'
end
call('ZREM', READY, unpack(members))
call('ZADD', JOBS, unpack(scores))
point(true, now)
reply[2], reply[4] = head(), fence
return reply
