//! Random words as a pure function of a key and a counter: Philox 4x32 with 7 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3", 2011: the fewest rounds that pass their battery of tests).

const ROUNDS: usize = 7;
const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The half of a lane that holds a word.
pub const LOW: u64 = 0xffff_ffff;

/// Words of a counter and of its output.
pub const WORDS: usize = 4;

/// N counters side by side. Each word lies in the lower half of a lane, where the CPU multiplies it in one instruction; what the upper half
/// holds has no meaning, before and after.
#[inline(always)]
pub fn philox<const N: usize>(counter: &mut [[u64; N]; WORDS], key: u64) {
    let mut key = [key as u32, (key >> 32) as u32];
    for _ in 0..ROUNDS {
        let [c0, c1, c2, c3] = counter;
        for i in 0..N {
            let first = (c0[i] & LOW) * MULTIPLIERS[0];
            let second = (c2[i] & LOW) * MULTIPLIERS[1];
            c0[i] = (second >> 32) ^ c1[i] ^ u64::from(key[0]);
            c1[i] = second;
            c2[i] = (first >> 32) ^ c3[i] ^ u64::from(key[1]);
            c3[i] = first;
        }
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
}

#[cfg(test)]
#[path = "../tests/unit/philox.rs"]
mod tests;
