//! The times of batches that a process has measured when it is ready, as bytes.

use std::time::Duration;

use super::message::InvalidMessage;

/// Of each function of a process: the times of batches by their weights.
pub type FunctionTimes = Vec<Vec<(u64, Duration)>>;

/// The bytes of times.
pub fn encode_times(times: &[Vec<(u64, Duration)>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for of_function in times {
        bytes.extend((of_function.len() as u64).to_le_bytes());
        for (weight, time) in of_function {
            bytes.extend(weight.to_le_bytes());
            bytes.extend(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).to_le_bytes());
        }
    }
    bytes
}

/// Reads times.
pub(super) fn read_times(bytes: &[u8]) -> Result<FunctionTimes, InvalidMessage> {
    let (numbers, []) = bytes.as_chunks::<8>() else { return Err(InvalidMessage) };
    let mut numbers = numbers.iter().copied().map(u64::from_le_bytes);
    let mut times = Vec::new();
    while let Some(count) = numbers.next() {
        let mut time = |_| {
            let (weight, nanos) = (numbers.next()?, numbers.next()?);
            Some((weight, Duration::from_nanos(nanos)))
        };
        let of_function: Option<Vec<_>> = (0..count).map(&mut time).collect();
        times.push(of_function.ok_or(InvalidMessage)?);
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_were_written() {
        let times = vec![vec![(1, Duration::from_millis(2)), (8, Duration::MAX)], vec![]];
        let read = read_times(&encode_times(&times)).unwrap();
        let nanos = Duration::from_nanos(u64::MAX);
        assert_eq!(read, [vec![(1, Duration::from_millis(2)), (8, nanos)], vec![]]);
        assert_eq!(read_times(&[]).unwrap(), FunctionTimes::new());
    }

    #[test]
    fn other_bytes_are_no_times() {
        let [one, endless] = [1_u64, u64::MAX].map(u64::to_le_bytes);
        for bytes in [&one[..3], &one, &endless, &[one, one].concat()] {
            assert_eq!(read_times(bytes), Err(InvalidMessage));
        }
    }
}
