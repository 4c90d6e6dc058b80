-- PURPOSE  Lease up to `limit` due members, or repeat the reply to a request whose reply was lost.
-- KEYS     the constant list (JOURNAL is the calling process' own), HELD and JOBS of the jobs
-- ARGV     limit, lease_ms, request (grows with each new claim of this process and shard), journal_ms, worker,
--          how many leases of both kinds may stand in the shard (Note [Limits]) | ''
-- RETURNS  JSON, see Note [One text]: now_ms, head_ms | '' | 'stale', epoch | '', fence | '', '1' where jobs are due and '2' where scores are lost |
--          '',
--          then per member:
--          member, point_ms | '', generation | '', attempts, lapsed ('0': nobody's lease ran out; else the holder whose did,
--          or '1' or '-' where he is not known any more)
-- COST     O(limit + log N), with a limit of leases also O(leases)
-- ATOMIC BECAUSE two workers must never hold a lease on one member, and the journal must tell exactly what was leased.
local now, jobs = server_ms(), tonumber(call('ZSCORE', DUE, 'jobs') or '')
local reply = {int(now), '', call('GET', EPOCH) or '', '', jobs and jobs <= now and '1' or ''}
if call('ZCARD', DUE) - (jobs and 1 or 0) < call('HLEN', POINT) or astray() > 0 then reply[5] = reply[5] .. '2' end

local function due(limit)
  local found = {}
  for _, member in ipairs(call('ZRANGE', DUE, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, limit + 1)) do
    if member ~= 'jobs' and #found < limit then found[#found + 1] = member end -- that one is claimed by job_claim
  end
  return found
end

local function tell(members)
  local points, generations = call('HMGET', POINT, unpack(members)), call('HMGET', GEN, unpack(members))
  local attempts = call('HMGET', ATTEMPTS, unpack(members))
  return function(i, lapsed) return {points[i] or '', generations[i] or '', attempts[i] or '0', lapsed} end
end

local members, scores = claim(JOURNAL, LEASE, now, reply, due, tell)
if members then
  if #members > 0 then call('ZADD', DUE, unpack(scores)) end
  reply[2] = head()
end
return cjson.encode(reply)
