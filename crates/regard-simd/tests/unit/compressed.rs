//! Rows of fewer bits: what their blocks are, and that they widen to it on every level.

use super::*;
use crate::level::Level;
use crate::simd::Driver;
use ndarray::{Array2, s};

/// Numbers between -3 and 3, some of them halves of a step.
fn number(i: usize) -> f32 {
    ((i * 7919 + 13) % 1000) as f32 / 167.0 - 3.0
}

struct Wide<'a>(CompressedRows<'a>);

impl<T: Real> Driver<T> for Wide<'_> {
    type Output = Vec<T>;
    fn run<S: Simd<T = T>>(self, simd: S) -> Vec<T> {
        let mut to = vec![T::from_f64(7.0); self.0.len() * self.0.cols()];
        self.0.widen(simd, &mut to);
        to
    }
}

/// The elements, on every level the same, in f32 and f64.
fn widened(rows: CompressedRows<'_>) -> Vec<f32> {
    let mut all = Level::available().map(|level| (f32::dispatch(level, Wide(rows)), f64::dispatch(level, Wide(rows)), level.name()));
    let (first, _, _) = all.next().expect("there is a level");
    for (narrow, wide, level) in all.chain([(first.clone(), f64::dispatch(Level::Portable, Wide(rows)), "portable")]) {
        let bits = |x: &[f32]| x.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect::<Vec<_>>();
        assert_eq!(bits(&first), bits(&narrow), "{level}");
        assert_eq!(bits(&first), bits(&wide.iter().map(|&x| x as f32).collect::<Vec<_>>()), "f64, {level}");
        assert!(wide.iter().zip(&first).all(|(w, f)| w.is_nan() || *w == f64::from(*f)), "f64, {level}");
    }
    first
}

#[test]
fn every_number_of_16_bits_widens_exactly() {
    let all = |make: fn(u16) -> f16| Array2::from_shape_fn((512, 128), |(i, j)| make((i * 128 + j) as u16));
    let halves = all(f16::from_bits);
    let got = widened(CompressedRows::f16(halves.view()));
    for (x, got) in halves.iter().zip(got) {
        assert!(x.to_f32() == got || (x.is_nan() && got.is_nan()), "{x:?} became {got}");
    }
    let brains = halves.mapv(|x| bf16::from_bits(x.to_bits()));
    let got = widened(CompressedRows::bf16(brains.view()));
    for (x, got) in brains.iter().zip(got) {
        assert!(x.to_f32() == got || (x.is_nan() && got.is_nan()), "{x:?} became {got}");
    }
}

#[test]
fn blocks_widen_on_every_level_whatever_their_strides() {
    for cols in [1, 31, 32, 33, 64, 80, 100] {
        let blocks = Array2::from_shape_fn((9, 2 * q8_blocks(cols)), |(i, b)| Q8Block {
            scale: f16::from_f32(0.01 * (i + 1) as f32),
            values: std::array::from_fn(|j| (i * 31 + b * 17 + j * 5) as u8 as i8),
        });
        for view in [blocks.slice(s![.., ..q8_blocks(cols)]), blocks.slice(s![..;-2, ..;2]), blocks.slice(s![1..1, ..q8_blocks(cols)])] {
            let rows = CompressedRows::q8(view, cols);
            let got = widened(rows);
            assert_eq!(got.len(), view.nrows() * cols);
            for (at, &got) in got.iter().enumerate() {
                let block = &view[[at / cols, at % cols / 32]];
                assert_eq!(f64::from(got), block.scale.to_f64() * f64::from(block.values[at % cols % 32]), "{cols} columns, element {at}");
            }
            if view.nrows() > 4 {
                assert_eq!(widened(rows.slice(2..4)), got[2 * cols..4 * cols], "{cols} columns");
            }
        }
    }
}

/// By the definition, in f64.
#[test]
fn a_block_holds_the_nearest_multiples_of_its_scale() {
    for count in [1, 5, 31, 32] {
        for seed in 0..200 {
            let x: Vec<f32> = (0..count).map(|i| number(seed * 32 + i) * 2f32.powi(seed as i32 % 13 - 6)).collect();
            let block = Q8Block::quantise(&x);
            let most = x.iter().fold(0f32, |most, x| most.max(x.abs())).max(f32::MIN_POSITIVE);
            assert_eq!(block.scale, f16::from_f32(most / 127.0), "{x:?}");
            for (i, &x) in x.iter().enumerate() {
                let nearest = f64::from(x) / (f64::from(most) / 127.0);
                assert!((f64::from(block.values[i]) - nearest).abs() <= 0.5 + 1e-4, "{x} became {}", block.values[i]);
                let step = f64::from(most) / 127.0;
                assert!((f64::from(block.widen()[i]) - f64::from(x)).abs() <= step * (0.5 + 127.0 / 2048.0 + 1e-4), "{x}");
            }
            assert!(block.values[count..].iter().all(|x| *x == 0));
            assert_eq!(Q8Block::quantise(&x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>()), block, "of f64");
        }
    }
    assert_eq!(Q8Block::quantise::<f32>(&[]), Q8Block::ZERO);
    assert_eq!(Q8Block::quantise(&[0f32, -0.0]), Q8Block::ZERO);
    // Below what f16 can scale: zeros.
    assert!(Q8Block::quantise(&[1e-7f32, -1e-38]).widen().iter().all(|x| *x == 0.0));
}

/// By `gguf.quants.quantize` of the package gguf 0.19.0: halves away from zero.
#[test]
fn blocks_are_those_of_gguf() {
    let x: [f32; 32] = std::array::from_fn(|i| if i == 31 { 127.0 } else { i as f32 * 8.0 - 120.5 });
    let block = Q8Block::quantise(&x);
    let values = [
        -121, -113, -105, -97, -89, -81, -73, -65, -57, -49, -41, -33, -25, -17, -9, -1, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96,
        104, 112, 120, 127,
    ];
    assert_eq!((block.scale.to_bits(), block.values), (15360, values));
}

#[test]
fn a_block_with_anything_that_is_not_finite_is_nan() {
    for (what, bad) in [("NaN", f32::NAN), ("infinity", f32::INFINITY), ("-infinity", f32::NEG_INFINITY), ("beyond the scale", 8.4e6)] {
        for place in [0, 13, 31] {
            let x: [f32; 32] = std::array::from_fn(|i| if i == place { bad } else { number(i) });
            let block = Q8Block::quantise(&x);
            assert!(block.widen().iter().all(|x| x.is_nan()), "{what} at {place}");
            let blocks = Array2::from_elem((3, 1), block);
            assert!(!CompressedRows::q8(blocks.view(), 32).all_finite(), "{what} at {place}");
            assert!(widened(CompressedRows::q8(blocks.view(), 32)).iter().all(|x| x.is_nan()), "{what} at {place}");
        }
    }
    assert!(Q8Block::quantise(&[8.3e6f32, 1.0]).widen()[0].is_finite());
    let finite = Array2::from_elem((3, 1), Q8Block::quantise(&[1f32]));
    assert!(CompressedRows::q8(finite.view(), 32).all_finite());
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = Array2::from_elem((3, 5), f16::ONE);
        assert!(CompressedRows::f16(x.view()).all_finite());
        x[[2, 4]] = f16::from_f32(bad);
        assert!(!CompressedRows::f16(x.view()).all_finite());
        assert!(!CompressedRows::bf16(x.mapv(|x| bf16::from_f32(x.to_f32())).view()).all_finite());
    }
}
