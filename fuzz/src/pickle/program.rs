//! Writes pickles from scripts, in which most operations find the values that they need.

/// Bytes of a script, one after another.
struct Script<'a>(std::slice::Iter<'a, u8>);

impl Script<'_> {
    fn next(&mut self) -> Option<usize> {
        self.0.next().map(|&byte| usize::from(byte))
    }

    /// A number below `end`, or 0 after the end of the script.
    fn below(&mut self, end: usize) -> usize {
        self.next().unwrap_or(0) % end.max(1)
    }
}

/// A value on the stack, as far as the writer needs to know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Value,
    Unhashable,
    List,
    Dict,
    Set,
    /// Accepts items, keys and state.
    Instance,
    /// Accepts state.
    Stateful,
    /// Requires state.
    Pending,
    Tuple,
    Mark,
}

#[derive(Default)]
struct Writer {
    out: Vec<u8>,
    stack: Vec<Slot>,
    memo: Vec<Slot>,
    /// The stack index of the value that was memoized last.
    memoized: usize,
    /// The lengths of all of these before each step.
    steps: Vec<(usize, usize, usize)>,
}

const BYTES_MAX: usize = 1 << 16;
/// Numbers, many of which share a hash in the model.
const NUMBERS: [i32; 6] = [0, 1, 300, 100_000, 100_005, 100_010];

/// A callable, its arguments, and the result.
const CALLS: [(u8, &[u8], Slot); 13] = [
    (b'a', b"R", Slot::Value),
    (b'b', b"R", Slot::Value),
    (b'c', b"R", Slot::Dict),
    (b'd', b"R", Slot::List),
    (b'e', b"R", Slot::Stateful),
    (b'f', b"R", Slot::Set),
    (b'g', b"R", Slot::Instance),
    (b'g', b"}\x92", Slot::Instance),
    (b'h', b"R", Slot::Value),
    (b'i', b"R)R", Slot::Value),
    (b'j', b"\x81", Slot::Pending),
    (b'k', b"\x81", Slot::Instance),
    (b'l', b"\x81", Slot::Value),
];

/// The operations of a script, which leave one value on the stack, and a STOP.
pub(super) fn pickle_of(script: &[u8]) -> Vec<u8> {
    let mut script = Script(script.iter());
    let mut writer = Writer::default();
    while let Some(step) = script.next() {
        if writer.out.len() > BYTES_MAX {
            break;
        }
        writer.steps.push((writer.out.len(), writer.stack.len(), writer.memo.len()));
        writer.step(step, &mut script);
    }
    writer.finish();
    writer.out
}

impl Writer {
    fn step(&mut self, step: usize, script: &mut Script<'_>) {
        match step % 32 {
            0..3 => self.leaf(script),
            3 => self.push(b"]", Slot::List),
            4 => self.push(b"}", Slot::Dict),
            5 => self.push(b"\x8f", Slot::Set),
            6 => self.push(b"(", Slot::Mark),
            7..10 => self.memoize(),
            10..14 => self.get_memoized(script),
            14..16 => self.tuple_of(1 + script.below(3)),
            16 => self.above_mark(b"t", Slot::Tuple),
            17 => self.above_mark(b"\x91", Slot::Value),
            18..21 => self.put_one(script),
            21..23 => self.put_all(),
            23 => self.global(script),
            24..26 => self.call(script),
            26 => self.build(),
            27 => self.pop(),
            28 => self.repeat(script),
            29 => self.nest(script),
            30 => self.drop_to_mark(),
            _ => self.anything(script),
        }
    }

    fn push(&mut self, operation: &[u8], slot: Slot) {
        self.out.extend_from_slice(operation);
        self.stack.push(slot);
        if self.memoized == self.stack.len() {
            self.memoized = 0;
        }
    }

    /// The number of values above the last mark.
    fn free(&self) -> usize {
        self.stack.iter().rev().take_while(|&&slot| slot != Slot::Mark).count()
    }

    fn take(&mut self, count: usize) {
        self.stack.truncate(self.stack.len().saturating_sub(count));
    }

    fn leaf(&mut self, script: &mut Script<'_>) {
        match script.below(14) {
            0 => self.push(b"N", Slot::Value),
            1 => self.push(b"\x88", Slot::Value),
            2..5 => {
                let number = NUMBERS[script.below(NUMBERS.len())];
                self.push(&[b"J", &number.to_le_bytes()[..]].concat(), Slot::Value);
            }
            5 => self.push(&[b'K', script.below(256) as u8], Slot::Value),
            6 => self.push(&[&b"G"[..], &[0; 7], &[script.below(8) as u8]].concat(), Slot::Value),
            7 => self.push(&[0x8c, 1, b'a' + script.below(26) as u8], Slot::Value),
            8 => {
                let length = script.below(256);
                let text = "é".repeat(length / 2) + &"x".repeat(length % 2);
                self.push(&[&[0x8c, length as u8], text.as_bytes()].concat(), Slot::Value);
            }
            9 => self.push(&[&b"C\x08"[..], &[script.below(256) as u8; 8]].concat(), Slot::Value),
            10 => {
                let length = script.below(256);
                self.push(&[&[0x8a, length as u8], &vec![7; length][..]].concat(), Slot::Value);
            }
            11 => self.push(b"\x96\x03\0\0\0\0\0\0\0abc", Slot::Unhashable),
            12 => self.push(b"\x97\x98", Slot::Unhashable),
            _ => self.push(b"NQ", Slot::Value),
        }
    }

    fn memoize(&mut self) {
        let Some(&slot) = self.stack.last().filter(|&&slot| slot != Slot::Mark) else { return };
        let may_change = !matches!(slot, Slot::Value | Slot::Tuple | Slot::Unhashable);
        if !may_change || self.memoized != self.stack.len() {
            self.out.push(0x94);
            self.memo.push(slot);
            self.memoized = self.stack.len();
        }
    }

    fn get_memoized(&mut self, script: &mut Script<'_>) {
        // Prefer recent entries.
        let back = script.below(256);
        let back = if back < 192 { back % 6 } else { back - 192 };
        let Some(place) = self.memo.len().checked_sub(1 + back) else { return };
        match u8::try_from(place) {
            Ok(place) => self.out.extend([b'h', place]),
            Err(_) => self.out.extend([b"j", &(place as u32).to_le_bytes()[..]].concat()),
        }
        // A value from the memo does not change.
        let slot = match self.memo[place] {
            Slot::Value | Slot::Tuple => self.memo[place],
            other if script.below(32) == 0 => other,
            _ => Slot::Unhashable,
        };
        self.stack.push(slot);
    }

    fn tuple_of(&mut self, count: usize) {
        if self.free() >= count {
            self.take(count);
            self.push(&[0x84 + count as u8], Slot::Tuple);
        } else {
            self.push(b")", Slot::Tuple);
        }
    }

    fn above_mark(&mut self, operation: &[u8], slot: Slot) {
        let free = self.free();
        if free < self.stack.len() {
            self.take(free + 1);
            self.push(operation, slot);
        }
    }

    /// Adds the top value to the one below it.
    fn put_one(&mut self, script: &mut Script<'_>) {
        let free = self.free();
        let below = |count: usize| (free > count).then(|| self.stack[self.stack.len() - 1 - count]);
        let is_key = |slot| matches!(slot, Some(Slot::Value | Slot::Tuple));
        match (below(2), below(1), below(0)) {
            (Some(Slot::Dict | Slot::Instance), key, Some(_)) if is_key(key) => {
                self.out.push(b's');
                self.take(2);
            }
            (_, Some(Slot::Dict), key) if is_key(key) => {
                self.out.extend(b"Ns");
                self.take(1);
            }
            (_, Some(Slot::List), _) => {
                self.out.push(b'a');
                self.take(1);
            }
            (_, Some(Slot::Instance), _) if script.below(2) == 0 => {
                self.out.push(b'a');
                self.take(1);
            }
            (_, Some(Slot::Instance | Slot::Stateful | Slot::Pending), _) => self.build(),
            _ => {}
        }
    }

    /// Adds the values above the last mark to the one below it.
    fn put_all(&mut self) {
        let free = self.free();
        let Some(mark) = self.stack.len().checked_sub(free + 1) else { return };
        match mark.checked_sub(1).map(|at| self.stack[at]) {
            Some(Slot::List | Slot::Instance) => self.out.push(b'e'),
            Some(Slot::Set) => self.out.push(0x90),
            Some(Slot::Dict) if free.is_multiple_of(2) => self.out.push(b'u'),
            Some(Slot::Dict) => self.out.extend(b"Nu"),
            _ => return,
        }
        self.take(free + 1);
    }

    fn global(&mut self, script: &mut Script<'_>) {
        let module = if script.below(8) == 0 { b'm' } else { b'v' };
        let name = b'a' + script.below(13) as u8;
        self.push(&[0x8c, 1, module, 0x8c, 1, name, 0x93], Slot::Value);
    }

    /// Calls a global with memoized values.
    fn call(&mut self, script: &mut Script<'_>) {
        let (name, how, makes) = CALLS[script.below(CALLS.len())];
        self.out.extend([0x8c, 1, b'm', 0x8c, 1, name, 0x93]);
        let arguments = script.below(4);
        let at = self.stack.len();
        (0..arguments).for_each(|_| self.get_memoized(script));
        let arguments = self.stack.len() - at;
        self.stack.truncate(at);
        self.out.push(if arguments == 0 { b')' } else { 0x84 + arguments as u8 });
        self.push(how, makes);
        if makes != Slot::Value && script.below(2) == 0 {
            self.memoize();
        }
    }

    fn build(&mut self) {
        let below = self.stack.len().checked_sub(2).map(|at| self.stack[at]);
        if let Some(Slot::Instance | Slot::Stateful | Slot::Pending) = below {
            self.out.push(b'b');
            self.take(2);
            self.stack.push(Slot::Value);
        }
    }

    fn pop(&mut self) {
        if self.free() > 0 {
            self.out.push(b'0');
            self.take(1);
        }
    }

    fn drop_to_mark(&mut self) {
        let free = self.free();
        if free < self.stack.len() {
            self.out.push(b'1');
            self.take(free + 1);
        }
    }

    /// Repeats the last steps many times, if they leave the stack as long as before.
    fn repeat(&mut self, script: &mut Script<'_>) {
        let back = 1 + script.below(32);
        let Some(first) = self.steps.len().checked_sub(1 + back) else { return };
        let (from, stack, memo) = self.steps[first];
        let Some(left) = self.stack.get(stack..).map(<[Slot]>::to_vec) else { return };
        let (again, places) = (self.out[from..].to_vec(), self.memo[memo..].to_vec());
        for _ in 0..1 << script.below(11) {
            if self.out.len() > BYTES_MAX {
                break;
            }
            self.out.extend_from_slice(&again);
            self.stack.extend_from_slice(&left);
            self.memo.extend_from_slice(&places);
        }
        self.memoized = 0;
    }

    /// Nests the top value in `count` tuples.
    fn nest(&mut self, script: &mut Script<'_>) {
        if self.free() > 0 {
            let levels = 1 << script.below(11);
            self.out.extend(std::iter::repeat_n(0x85, levels));
            self.take(1);
            self.stack.push(Slot::Tuple);
        }
    }

    fn anything(&mut self, script: &mut Script<'_>) {
        let byte = script.below(256) as u8;
        if script.below(16) == 1 {
            self.out.push(byte);
        }
    }

    /// Makes one value of all values on the stack.
    fn finish(&mut self) {
        while let Some(mark) = self.stack.iter().rposition(|&slot| slot == Slot::Mark) {
            self.stack.truncate(mark);
            self.push(b"t", Slot::Tuple);
        }
        if self.stack.is_empty() {
            self.out.push(b'N');
        }
        self.out.extend(std::iter::repeat_n(0x86, self.stack.len().saturating_sub(1)));
        self.out.push(b'.');
    }
}
