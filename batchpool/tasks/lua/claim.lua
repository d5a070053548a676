-- Take queued tasks whose time has come, in turns as batchpool/tasks/turns.py has them. ARGV: again,
-- now, owner, model, most, bytes, '1' where the first may be of more bytes. Answers the record of
-- each.
local now, owner, model = ARGV[2], ARGV[3], ARGV[4]
local left, room, any = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local ADOPTED_MOST = 256

-- Let tasks join their callers' lines; one without a state the server has evicted.
local function join_from(key, ids)
  for _, id in ipairs(ids) do
    remove(key, id)
    local task = record(id)
    if task.state == '0' then join(id, task) end
  end
  if #ids > 0 then write() end
end

local later = BASE .. 'later:' .. model
join_from(later, call('ZRANGEBYSCORE', later, '-inf', now, 'LIMIT', 0, left))
-- Boxes of version 3 queue all tasks in one line, in turns by caller.
join_from(old_key(model), call('ZRANGE', old_key(model), 0, ADOPTED_MOST - 1))

-- The origins, as a heap by their turns: of equal turns the one that was set first.
local heap, set = {}, 0
local found = call('ZRANGE', origins_key(model), 0, left - 1, 'WITHSCORES')
for at = 1, #found, 2 do
  set = set + 1
  heap[set] = {origin = found[at], turn = tonumber(found[at + 1]), set = set, place = 0, read = {}}
end
local touched = {}

local function sift()
  local at, size = 1, #heap
  while true do
    local least = at
    for child = 2 * at, math.min(2 * at + 1, size) do
      local one, other = heap[child], heap[least]
      if one.turn < other.turn or one.turn == other.turn and one.set < other.set then
        least = child
      end
    end
    if least == at then return end
    heap[at], heap[least] = heap[least], heap[at]
    at = least
  end
end

local function drop_top()
  heap[1] = heap[#heap]
  heap[#heap] = nil
  sift()
end

local each = math.ceil(left / math.max(1, set)) + 1 -- one more, which tells whether anything is left
local taken, claims, at_ms, turn = 0, {}, server_ms(), nil
while #heap > 0 and taken < left and (room > 0 or any) do
  local top = heap[1]
  if top.place == #top.read and not top.ended then
    local most = top.place == 0 and each or 1 + left - taken
    local line = line_key(model, top.origin)
    local more = call('ZRANGE', line, top.place / 2, top.place / 2 + most - 1, 'WITHSCORES')
    for _, word in ipairs(more) do top.read[#top.read + 1] = word end
    top.ended = #more < 2 * most
    if top.place == 0 then touched[#touched + 1] = top end
  end
  if top.place == #top.read then
    drop_top()
  else
    local id = top.read[top.place + 1]
    local task = call('HMGET', task_key(id), 'state', 'claims', 'attempts', 'losses', 'rows', 'input',
      'answer', 'submitted')
    local size = #(task[6] or '')
    if size > room and not any then break end
    room, any, taken = room - size, false, taken + 1
    top.place = top.place + 2
    if task[1] == '0' then
      local claim = whole(task[2]) + 1
      call('HSET', task_key(id), 'state', '1', 'claims', claim, 'owner', owner, 'started', now,
        'which', 'run')
      add(run_key(model), at_ms, id)
      claims[#claims + 1] = {id, claim, unpack(task, 3, 8)}
      turn = top.turn
      top.turn, set = top.turn + whole(task[5]), set + 1
      top.set = set
    end
    if top.place == #top.read and top.ended then drop_top() else sift() end
  end
end

-- Origins of which nothing waits any more leave, mostly all of them together.
local gone, keys = {}, {}
for _, origin in ipairs(touched) do
  local line, ends = line_key(model, origin.origin), ends_key(model, origin.origin)
  local is_through = origin.place == #origin.read
  if is_through and (origin.ended or call('ZCARD', line) == origin.place / 2) then
    gone[#gone + 1] = origin.origin
    keys[#keys + 1], keys[#keys + 2] = line, ends
    if turn and origin.turn > turn then add(left_key(model), origin.turn, origin.origin) end
  elseif origin.place > 0 then
    local last = origin.read[origin.place]
    call('ZREMRANGEBYRANK', line, 0, origin.place / 2 - 1)
    call('ZREMRANGEBYSCORE', ends, '-inf', last)
    call('HSET', at_key(model), origin.origin, last)
    add(origins_key(model), origin.turn, origin.origin)
  end
end
local are_all_gone = #gone == #found / 2 and #gone < left
if #gone > 0 and not are_all_gone then
  in_parts('ZREM', origins_key(model), gone)
  in_parts('HDEL', at_key(model), gone)
  are_all_gone = call('ZCARD', origins_key(model)) == 0
end
if are_all_gone then
  changes.added[left_key(model)] = nil
  for _, of in ipairs({origins_key, at_key, left_key, now_key}) do keys[#keys + 1] = of(model) end
elseif turn then
  call('SET', now_key(model), turn)
  call('ZREMRANGEBYSCORE', left_key(model), '-inf', turn)
  if call('ZCARD', left_key(model)) > LINES_MOST then call('UNLINK', left_key(model)) end
end
if #keys > 0 then in_parts('UNLINK', keys[1], keys) end
count('0:' .. model, -#claims)
count('1:' .. model, #claims)
return claims
