-- Take queued tasks whose time has come. ARGV: again, now, owner, model, most, bytes, '1' where the
-- first may be of more bytes. Answers for each its record, and where it is in the streams.
local now, owner, model = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local left, room, any = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local later = BASE .. 'later:' .. model
for _, id in ipairs(redis.call('ZRANGEBYSCORE', later, '-inf', now, 'LIMIT', 0, left)) do
  local due = redis.call('ZSCORE', later, id)
  redis.call('ZREM', later, id)
  enqueue(id, model, redis.call('HSTRLEN', task_key(id), 'input'), due, 'r')
end
local claims = {}
local full = false
for _, which in ipairs({'r', 'q'}) do
  local key = stream_key(which, model)
  if left > 0 and not full and redis.call('EXISTS', key) == 1 then
    local last
    local group = redis.call('XINFO', 'GROUPS', key)[1]
    for i = 1, #group, 2 do
      if group[i] == 'last-delivered-id' then last = group[i + 1] end
    end
    local most = 0
    for _, entry in ipairs(redis.call('XRANGE', key, '(' .. last, '+', 'COUNT', left)) do
      local size, due = tonumber(entry[2][4]), tonumber(entry[2][6])
      full = size > room and not any
      if full or due > now then break end
      room, any, most = room - size, false, most + 1
    end
    if most > 0 then
      local read = redis.call('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', most, 'STREAMS', key, '>')
      for _, entry in ipairs(read[1][2]) do
        local id = entry[2][2]
        local task = task_key(id)
        if redis.call('HGET', task, 'state') == '0' then
          local claim = redis.call('HINCRBY', task, 'claims', 1)
          redis.call('HSET', task, 'state', '1', 'owner', owner, 'started', now)
          move(model, '0', '1')
          local found = redis.call('HMGET', task, 'attempts', 'losses', 'rows', 'input', 'answer',
            'submitted')
          claims[#claims + 1] = {id, claim, unpack(found)}
          left = left - 1
        else -- the server has evicted its record
          redis.call('XACK', key, GROUP, entry[1])
          redis.call('XDEL', key, entry[1])
        end
      end
    end
  end
end
return claims
