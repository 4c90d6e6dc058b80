-- PURPOSE  Compare and set the shard's epoch: begin, continue or finish a rebuild.
-- KEYS     the constant list
-- ARGV     expected ('' = absent), new, ttl_ms ('0' = never expires)
-- RETURNS  1 set, 0 the epoch differs
-- COST     O(1)
-- ATOMIC BECAUSE a flush during a rebuild must not leave an empty shard marked as built.
local epoch = call('GET', EPOCH) or ''
-- A mark that never expires is damaged: no worker holds it.
if string.find(epoch, '^building:') and call('PTTL', EPOCH) == -1 then epoch = '' end
if epoch ~= ARGV[1] then return 0 end
if ARGV[3] == '0' then call('SET', EPOCH, ARGV[2]) else call('SET', EPOCH, ARGV[2], 'PX', ARGV[3]) end
return 1
