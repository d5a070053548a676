-- Commands that this user may not use, of those that a store needs. COUNTS: a key that nobody has,
-- and that is gone afterwards. ARGV: again. Answers their names.
local hash, set, word = COUNTS .. ':h', COUNTS .. ':z', COUNTS .. ':s'
local commands = {
  {'HSET', hash, 'f', '1'}, {'HSETNX', hash, 'f', '1'}, {'HINCRBY', hash, 'f', '1'},
  {'HGET', hash, 'f'}, {'HMGET', hash, 'f'}, {'HGETALL', hash}, {'HKEYS', hash},
  {'HSTRLEN', hash, 'f'}, {'HDEL', hash, 'f'},
  {'ZADD', set, '1', 'm'}, {'ZINCRBY', set, '1', 'm'}, {'ZCARD', set}, {'ZSCORE', set, 'm'},
  {'ZRANGE', set, '0', '0'},
  {'ZREVRANGE', set, '0', '0'}, {'ZRANGEBYSCORE', set, '0', '0'},
  {'ZREVRANGEBYSCORE', set, '0', '0'}, {'ZREMRANGEBYRANK', set, '0', '0'},
  {'ZREMRANGEBYSCORE', set, '0', '0'}, {'ZREM', set, 'm'},
  {'SET', word, '1'}, {'INCRBY', word, '1'}, {'GET', word}, {'EXISTS', word},
  {'PEXPIRE', word, '1000'}, {'TIME'}, {'UNLINK', word}, {'DEL', hash, set, word},
}
local refused = {}
for _, words in ipairs(commands) do
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then refused[#refused + 1] = words[1] end
end
return refused
