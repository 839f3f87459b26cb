"""The bilingual word list: Chinese and English surfaces of verbs, states, small words and household nouns.

Pure tables. A surface that stands for two tokens at once (放到 = put + to) lists both. To teach the robot a word, add
it here; lexicon.py joins these with the names of the map.
"""

from enum import Enum


class Kind(Enum):
    """What a token is to the grammar."""

    VERB = 'verb'
    PLACE = 'place'
    OBJECT = 'object'
    DOOR = 'door'
    STATE = 'state'
    FRACTION = 'fraction'
    NUMBER = 'number'
    UNIT = 'unit'
    IF = 'if'
    MAYBE_IF = 'maybe_if'  # English "if": a condition, or "whether" after a verb of checking
    SO = 'so'  # closes a condition that had no "if": 满了就…, …的话
    ELSE = 'else'
    NOT = 'not'
    TO = 'to'
    AT = 'at'
    FROM = 'from'
    ARRIVE = 'arrive'  # 到: a verb when the clause has none yet, "to" otherwise
    IT = 'it'
    AFFIRM = 'affirm'  # "so", "yes": the state asked about last
    BACK = 'back'  # to where it was
    CHARGE = 'charge'
    BREAK = 'break'
    LINK = 'link'
    TAKE = 'take'  # 把: the object comes before the verb
    FILLER = 'filler'
    UNKNOWN = 'unknown'


Entry = tuple[tuple[Kind, str], ...]


def _same(kind: Kind, value: str, surfaces: str) -> dict[str, Entry]:
    return {surface.strip(): ((kind, value),) for surface in surfaces.split('|')}


def _verb_to(value: str, surfaces: str) -> dict[str, Entry]:
    return dict.fromkeys(surfaces.split('|'), ((Kind.VERB, value), (Kind.TO, '')))


VERBS: dict[str, Entry] = {
    **_same(
        Kind.VERB,
        'go',
        'go to|go into|go|drive to|drive|head to|head over to|navigate to|walk to|enter|visit|move to|go over to'
        '|去|去到|前往|走到|来到|开到|进入|移动到|走进|去往|过去',
    ),
    **_same(Kind.VERB, 'find', 'find|look for|search for|locate|找|找到|寻找|查找|搜索|找找|找一下|找出'),
    **_same(
        Kind.VERB,
        'check',
        'check|inspect|look at|examine|see|verify|check on|look|have a look at|take a look at'
        '|检查|查看|看看|看|看一下|看下|确认|观察|检查一下|瞧瞧|看一看|查一下|检测|查询',
    ),
    **_same(
        Kind.VERB,
        'pick',
        'pick up|pick|take|grab|fetch|get|grasp|lift|拿起|拿|取|拿上|抓起|抓|捡起|端起|取出|拿住|抓住|拾起|取来',
    ),
    **_same(Kind.VERB, 'bring', 'bring|carry|deliver|move|transport|带|送|搬|端|搬运|运送'),
    **_same(Kind.VERB, 'put', 'put|place|set|put down|set down|leave|放|放下|摆|搁'),
    **_same(Kind.VERB, 'pour', 'pour out|pour|pour away|dump|tip out|倒掉|倒|倒出|倒出来|倒去'),
    **_same(Kind.VERB, 'pour_all', 'drain|倒光|倒空|倒干净|清空|全倒掉'),
    **_same(Kind.VERB, 'open', 'open|打开|开'),
    **_same(Kind.VERB, 'close', 'close|shut|关上|关闭|关|关好|关掉'),
    **_same(Kind.VERB, 'wait', 'wait for|wait|pause for|pause|等|等待|等一下|停留|暂停|等候'),
    **_same(
        Kind.VERB,
        'return',
        'return to|return|go back to|go back|come back to|come back|get back to|back to|head back to|drive back to'
        '|返回|回到|回|回去|返回到|返回去|再回到|退回',
    ),
    **_verb_to('bring', '拿到|带到|送到|搬到|端到|取到|拿去|送去|带去|送回|带回|拿回'),
    **_verb_to('put', '放到|放在|放进|放入|摆到|摆在|放回|放去|搁在|put in|put on|place on'),
    **_verb_to('pour', '倒到|倒进|倒入|倒在'),
}

STATES: dict[str, Entry] = {
    **_same(
        Kind.STATE,
        'full',
        'full|filled|filled up|full up'
        '|满|满了|倒满|倒满了|已满|装满|装满了|满的|满不满'
        '|满没满|已经满|已经满了|是满的|盛满|盛满了|满着|满水',
    ),
    **_same(
        Kind.STATE,
        'not_full',
        'not full|没满|不满|没有满|未满|没倒满|没装满|不是满的|没有倒满|没有装满',
    ),
    **_same(Kind.STATE, 'empty', 'empty|is empty|空|空的|空了|是空的|空不空|已空|空着'),
    **_same(Kind.STATE, 'not_empty', 'not empty|不空|不是空的|没空'),
}

SMALL: dict[str, Entry] = {
    **_same(Kind.IF, '', '如果|要是|假如|若|若是|倘若|如|in case|只要'),
    **_same(Kind.MAYBE_IF, '', 'if'),
    **_same(Kind.SO, '', '就|则|的话|那就|那么|的话就|便'),
    **_same(Kind.ELSE, '', 'else|otherwise|or else|否则|不然|要不然'),
    **_same(Kind.NOT, '', "not|isn't|is not|it isn't|it's not|doesn't|不|没|没有|不是|并非|并不"),
    **_same(Kind.TO, '', 'to|into|onto|over to|往|向'),
    **_same(Kind.AT, '', 'on|in|at|inside|on top of|在'),
    **_same(Kind.FROM, '', 'from|out of|从'),
    **_same(Kind.ARRIVE, '', '到'),
    **_same(Kind.IT, '', 'it|its|它|其'),
    **_same(Kind.AFFIRM, '', 'so|yes|it is|is|是|是的'),
    **_same(Kind.BACK, '', 'back|back again|where it was|原处|原位|原来的地方|原来的位置|回去原处|回原处|回原位'),
    **_same(Kind.CHARGE, '', 'charge|recharge|charge itself|charging|dock itself|充电|充个电'),
    **_same(
        Kind.BREAK,
        '',
        ',|.|!|?|，|。|！|？|、|:|：|then|and then|after that|afterwards|finally|next|lastly'
        '|然后|接着|之后|随后|最后|再|然后再|接下来|完了之后|完成后',
    ),
    **_same(Kind.BREAK, 'hard', ';|；'),
    **_same(Kind.LINK, '', 'and|&|并|并且|而且|和|又|且|同时'),
    **_same(Kind.TAKE, '', '把|将'),
    **_same(Kind.UNIT, 'seconds', 's|sec|secs|second|seconds|秒|秒钟'),
    **_same(Kind.UNIT, 'minutes', 'min|mins|minute|minutes|分钟'),
    **_same(Kind.FRACTION, '0.5', 'half|a half|one half|half of|一半|二分之一|半数'),
    **_same(Kind.FRACTION, '0.3333333333333333', 'a third|one third|third'),
    **_same(Kind.FRACTION, '0.6666666666666666', 'two thirds|two-thirds'),
    **_same(Kind.FRACTION, '0.25', 'a quarter|one quarter|quarter|a fourth|one fourth'),
    **_same(Kind.FRACTION, '0.75', 'three quarters|three-quarters|three fourths'),
    **_same(Kind.FRACTION, '1.0', 'all|everything|completely|all of|全部|全|所有|全都|都|完全'),
    **_same(
        Kind.FILLER,
        '',
        'the|a|an|of|please|robot|hey|now|whether|or not|out|that|this|there|first|up|some|your|you|can|could|would'
        "|what|how|down|water|contents|content|liquid|are|was|be|has|been|your|for me|it's|its content|by|me know"
        '|请|请你|帮我|帮忙|麻烦|麻烦你|一下|里|里面|里边|的|那个|这个|那|这|机器人|先|了|一个|一本|一只|个|本|只|杯|水|上|上面|边|旁边'
        '|是否|是不是|有没有|否|掉|其中|内|中|吧|呢|吗|啊|你|来|去一趟|一趟|得|着|下|情况|状态|已经|已|里头|房间|处|那里|那边|起来',
    ),
}

NOUNS: dict[str, tuple[str, ...]] = {
    'kitchen': ('kitchen', '厨房'),
    'living_room': ('living room', 'lounge', 'sitting room', '客厅', '起居室'),
    'bedroom': ('bedroom', '卧室', '卧房', '睡房'),
    'bathroom': ('bathroom', 'restroom', 'toilet', '卫生间', '浴室', '洗手间', '厕所'),
    'study': ('study', 'office', '书房', '办公室'),
    'dining_room': ('dining room', '餐厅', '饭厅'),
    'hallway': ('hallway', 'hall', 'corridor', '走廊', '过道'),
    'balcony': ('balcony', '阳台'),
    'dock': (
        'dock', 'charger', 'charging station', 'charging dock', 'charging base', 'charging pile', 'docking station',
        'home base', 'home', '充电座', '充电桩', '充电站', '充电器', '充电坞', '充电底座', '充电基座', '基座', '底座',
        '家',
    ),
    'sink': ('sink', 'basin', '水槽', '洗碗池', '洗手池', '水池', '洗碗槽'),
    'table': ('table', '桌子', '桌', '桌面'),
    'dining_table': ('dining table', '餐桌', '饭桌'),
    'coffee_table': ('coffee table', '茶几'),
    'counter': ('counter', 'countertop', 'worktop', '台面', '料理台', '柜台', '灶台', '操作台'),
    'desk': ('desk', '书桌', '办公桌'),
    'bed': ('bed', '床'),
    'sofa': ('sofa', 'couch', '沙发'),
    'shelf': ('shelf', 'bookshelf', '书架', '架子', '搁板'),
    'nightstand': ('nightstand', 'bedside table', '床头柜'),
    'washing_machine': ('washing machine', 'washer', '洗衣机'),
    'cabinet': ('cabinet', 'cupboard', '柜子', '橱柜'),
    'cup': ('cup', 'mug', 'glass', '水杯', '杯子', '茶杯', '马克杯', '玻璃杯'),
    'book': ('book', '书', '书本', '图书'),
    'bottle': ('bottle', '瓶子', '水瓶', '瓶'),
    'plate': ('plate', 'dish', '盘子', '碟子', '餐盘'),
    'bowl': ('bowl', '碗', '饭碗'),
    'apple': ('apple', '苹果'),
    'banana': ('banana', '香蕉'),
    'kettle': ('kettle', '水壶', '茶壶'),
    'phone': ('phone', '手机', '电话'),
    'remote': ('remote', 'remote control', '遥控器'),
    'key': ('key', '钥匙'),
    'toy': ('toy', '玩具'),
    'towel': ('towel', '毛巾'),
    'box': ('box', '盒子', '箱子'),
}  # fmt: skip
