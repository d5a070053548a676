-- Take queued tasks whose time has come, in turns by caller. ARGV: again, now, owner, model, most,
-- bytes, '1' where the first may be of more bytes. Answers the record of each.
local now, owner, model = ARGV[2], ARGV[3], ARGV[4]
local left, room, any = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local later, turns, key = BASE .. 'later:' .. model, turns_key(model), stream_key(model)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', later, '-inf', now, 'LIMIT', 0, left)) do
  redis.call('ZREM', later, id)
  local task = redis.call('HMGET', task_key(id), 'caller', 'rows')
  if task[1] then join(id, model, task[1], task[2], false) end -- else the server has evicted it
end
local taken, ids = 0, {}
local found = redis.call('ZRANGE', turns, 0, left - 1, 'WITHSCORES')
for at = 1, #found, 2 do
  local size = redis.call('HSTRLEN', task_key(found[at]), 'input')
  if size > room and not any then break end
  room, any, taken = room - size, false, taken + 1
  if redis.call('HGET', task_key(found[at]), 'state') == '0' then ids[#ids + 1] = found[at] end
end
if taken == 0 then return {} end
redis.call('ZREMRANGEBYRANK', turns, 0, taken - 1)
redis.call('SET', BASE .. 'now:' .. model, found[2 * taken])
redis.call('ZREMRANGEBYSCORE', BASE .. 'lines:' .. model, '-inf', found[2 * taken])
forget_lines(model)
if #ids == 0 then return {} end
if redis.call('EXISTS', key) == 0 then
  redis.call('XGROUP', 'CREATE', key, GROUP, '0', 'MKSTREAM')
end
local claims = {}
for _, id in ipairs(ids) do
  local task, entry = task_key(id), redis.call('XADD', key, '*', 't', id)
  local claim = redis.call('HINCRBY', task, 'claims', 1)
  redis.call('HSET', task, 'state', '1', 'owner', owner, 'started', now, 'which', 'run',
    'entry', entry)
  local record = redis.call('HMGET', task, 'attempts', 'losses', 'rows', 'input', 'answer',
    'submitted')
  claims[#claims + 1] = {id, claim, unpack(record)}
end
count('0:' .. model, -#ids)
count('1:' .. model, #ids)
-- The entries are pending from now on: all that this stream has is claimed.
redis.call('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', #ids, 'STREAMS', key, '>')
return claims
