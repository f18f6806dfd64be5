//! Picks one of several upstreams.

use ucall_proto::json::Reader;

/// Picks upstreams by their calls in flight, or by a param.
#[derive(Debug)]
pub(crate) struct Picker {
    /// The state of a xorshift generator, never 0.
    random: u64,
}

impl Picker {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: seed | 1 }
    }

    /// Of two candidates the one with fewer calls in flight. Two are enough to spread calls evenly,
    /// and workers that pick the least of all would pick the same.
    pub(crate) fn least_of_two(
        &mut self,
        candidates: &[usize],
        outstanding: impl Fn(usize) -> usize,
    ) -> Option<usize> {
        let count = candidates.len() as u64;
        if count < 2 {
            return candidates.first().copied();
        }
        let random = self.next();
        let one = random % count;
        let other = (one + 1 + (random >> 32) % (count - 1)) % count;
        let (one, other) = (candidates[one as usize], candidates[other as usize]);
        Some(if outstanding(one) <= outstanding(other) { one } else { other })
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// The candidate with the highest hash of its name and `value`: without one upstream, the values of
/// the others stay where they are.
pub(crate) fn by_hash<'a>(
    candidates: &[usize],
    value: &[u8],
    name: impl Fn(usize) -> &'a str,
) -> Option<usize> {
    candidates.iter().copied().max_by_key(|&index| hash(name(index).as_bytes(), value))
}

/// The text of the param `name`, if the params are an object that has it.
pub(crate) fn param<'a>(params: Option<&'a [u8]>, name: &str) -> Option<&'a [u8]> {
    let [found] = Reader::new(params?).members([name.as_bytes()])?;
    found
}

/// FNV-1a, mixed at the end: the same in each process, for ever.
fn hash(name: &[u8], value: &[u8]) -> u64 {
    let bytes = name.iter().chain(&[0]).chain(value);
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, step);
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_go_to_the_less_busy_of_two() {
        let mut picker = Picker::new(0);
        assert_eq!(picker.least_of_two(&[], |_| 0), None);
        assert_eq!(picker.least_of_two(&[3], |_| 0), Some(3));
        for _ in 0..100 {
            assert_eq!(picker.least_of_two(&[3, 5], |index| 10 - index), Some(5));
        }
        let mut outstanding = [0; 4];
        for _ in 0..400 {
            let picked = picker.least_of_two(&[0, 1, 2, 3], |index| outstanding[index]);
            outstanding[picked.expect("there are candidates")] += 1;
        }
        assert!(outstanding.iter().all(|count| (90..=110).contains(count)), "{outstanding:?}");
    }

    #[test]
    fn a_value_stays_at_its_upstream_when_another_leaves() {
        let names = ["tcp://a:1", "tcp://b:1", "tcp://c:1"];
        let pick = |candidates: &[usize], value: u32| {
            by_hash(candidates, value.to_string().as_bytes(), |index| names[index]).unwrap()
        };
        let mut counts = [0; 3];
        for value in 0..3000 {
            let picked = pick(&[0, 1, 2], value);
            counts[picked] += 1;
            if picked != 1 {
                assert_eq!(pick(&[0, 2], value), picked);
            }
        }
        assert!(counts.iter().all(|count| (900..=1100).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_text_of_a_param_is_found_by_its_name() {
        assert_eq!(param(Some(br#"{"a":1, "b\u0021" : "x" }"#), "b!"), Some(&br#""x""#[..]));
        assert_eq!(param(Some(b"[1]"), "a"), None);
        assert_eq!(param(None, "a"), None);
    }
}
