//! Random numbers: right, and the same however they are asked for.

use super::*;

#[test]
fn radius_and_turn_are_right_to_1e_9() {
    let some = (0..1 << 16).map(|i: u64| (i * 65_537) & LOW);
    for word in some.chain([0, 1, 2, LOW - 1, LOW, 1 << 29, (1 << 29) - 1, 3 << 30, 1 << 31]) {
        let u = (word as f64 + 0.5) / 4_294_967_296.0;
        // Near u = 1 the logarithm is small, and `exact` tells it apart.
        assert!((radius(word | 77 << 32) - (-2.0 * u.ln()).sqrt()).abs() < 1e-9, "radius of {word}");
        let ((cos, sin), angle) = (turn(word | 77 << 32), std::f64::consts::TAU * u);
        assert!((cos - angle.cos()).abs() < 1e-9 && (sin - angle.sin()).abs() < 1e-9, "turn of {word}");
    }
}

#[test]
fn a_sequence_does_not_depend_on_the_parts_it_is_asked_for_in_nor_on_the_level() {
    let mut whole = vec![0.0; 1000];
    Stream::new(7, [1, 2, 3]).normal(&mut whole);
    for part in [1, 3, 63, 64, 65, 128, 999] {
        let (mut stream, mut parts) = (Stream::new(7, [1, 2, 3]), vec![0.0; 1000]);
        parts.chunks_mut(part).for_each(|to| stream.normal(to));
        assert_eq!(whole, parts, "{part} at a time");
    }
    for level in Level::available() {
        let mut blocks = vec![[0.0; BLOCK]; 15];
        f64::call(level, Make { seed: 7, place: [1, 2, 3], first: 0, blocks: &mut blocks, normal: true });
        assert_eq!(whole[..960], *blocks.as_flattened(), "{level:?}");
    }
}
