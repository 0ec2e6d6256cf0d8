//! The known answers of Philox.

use super::*;

/// The known answers that the authors of Philox publish for 4x32 with 7 rounds.
#[test]
fn philox_gives_the_published_words() {
    let run = |counter: [u32; 4], key: [u32; 2]| {
        // The upper halves are not looked at.
        let mut c = counter.map(|x| [u64::from(x) | 0xdead_beef << 32]);
        philox(&mut c, u64::from(key[0]) | u64::from(key[1]) << 32);
        c.map(|[x]| x as u32)
    };
    assert_eq!(run([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
    assert_eq!(run([u32::MAX; 4], [u32::MAX; 2]), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
    assert_eq!(
        run([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
        [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]
    );
}
