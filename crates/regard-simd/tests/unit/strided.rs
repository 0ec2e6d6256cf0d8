//! Transposes, copies and the search for what is not finite, on every level, of any strides.

use super::*;
use crate::level::Level;
use crate::simd::Driver;
use ndarray::{Array2, s};

fn numbers<E: Storage>(rows: usize, cols: usize) -> Array2<E> {
    Array2::from_shape_fn((rows, cols), |(i, j)| E::from_real(E::Real::from_f64((i * 37 + j) as f64)))
}

/// What `f` needs lanes for.
struct With<F>(F);

trait OnLanes<T: Real> {
    fn on<S: Simd<T = T>>(&mut self, simd: S);
}

impl<T: Real, F: OnLanes<T>> Driver<T> for With<&mut F> {
    type Output = ();
    fn run<S: Simd<T = T>>(self, simd: S) {
        self.0.on(simd);
    }
}

struct Transposes<'a, E: Storage> {
    x: ArrayView2<'a, E>,
    width: usize,
    first: usize,
    got: Vec<E::Real>,
    back: Vec<E::Real>,
    copied: Vec<E::Real>,
    finite: bool,
}

impl<E: Storage> OnLanes<E::Real> for Transposes<'_, E> {
    fn on<S: Simd<T = E::Real>>(&mut self, simd: S) {
        let rows = Rows::new(&self.x);
        rows.transpose_into(simd, &mut self.got, self.width, self.first);
        rows.copy(simd, &mut self.copied);
        self.finite = rows.all_finite(simd);
        if self.first == 0 && self.width.is_multiple_of(S::LANES) {
            let (by, (rows, dims)) = (vec![E::Real::ONE + E::Real::ONE; self.width], self.x.dim());
            // SAFETY: only numbers are written to it.
            let to = unsafe { as_uninit(&mut self.back) };
            simd.call(TransposeOut::<_, true> { from: &self.got, width: self.width, by: &by, rows, dims, to });
        }
    }
}

fn check<E: Storage>() {
    for level in Level::available() {
        for (rows, cols) in [(1, 1), (8, 8), (4, 4), (16, 16), (5, 7), (13, 33), (32, 64), (17, 16), (3, 40)] {
            let (plain, wide) = (numbers::<E>(rows, cols), numbers::<E>(rows, 2 * cols));
            let turned = plain.t().as_standard_layout().into_owned();
            for x in [plain.view(), wide.slice(s![.., ..;2]), turned.t(), plain.slice(s![..;-1, ..])] {
                for (width, first) in [(32, 0), (64, 8), (64, 16), (rows + 3, 3)] {
                    if first + rows > width {
                        continue;
                    }
                    let zeros = |len: usize| vec![E::Real::ZERO; len];
                    let mut task = Transposes {
                        x,
                        width,
                        first,
                        got: zeros(cols * width),
                        back: zeros(rows * cols),
                        copied: zeros(rows * cols),
                        finite: false,
                    };
                    E::Real::dispatch(level, With(&mut task));
                    let what = format!("{rows} x {cols} at {first} of {width}, {level:?}, {}", std::any::type_name::<E>());
                    for ((i, j), &number) in x.indexed_iter() {
                        assert_eq!(task.got[j * width + first + i].to_f64(), number.to_real().to_f64(), "{what}");
                        assert_eq!(task.copied[i * cols + j].to_f64(), number.to_real().to_f64(), "{what}");
                        if first == 0 && width % 16 == 0 {
                            assert_eq!(task.back[i * cols + j].to_f64(), number.to_real().to_f64() / 2.0, "{what}");
                        }
                    }
                    assert!(task.finite, "{what}");
                }
            }
        }
    }
}

#[test]
fn transposed_there_and_back_are_the_numbers() {
    check::<f32>();
    check::<f64>();
    check::<f16>();
    check::<bf16>();
}

#[test]
fn one_number_that_is_not_finite_is_found_anywhere() {
    for level in Level::available() {
        for (i, j) in (0..3).flat_map(|i| (0..37).map(move |j| (i, j))) {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = numbers::<f32>(3, 37);
                x[[i, j]] = bad;
                let zeros = vec![0.0; 37 * 32];
                let mut task =
                    Transposes { x: x.view(), width: 32, first: 0, got: zeros.clone(), back: zeros.clone(), copied: zeros, finite: true };
                f32::dispatch(level, With(&mut task));
                assert!(!task.finite, "{bad} at ({i}, {j}), {level:?}");
            }
        }
    }
}

/// In registers: vectors become columns, and so do lines that are loaded.
struct Squares<T> {
    ok: bool,
    numbers: Vec<T>,
}

impl<T: Real> OnLanes<T> for Squares<T> {
    fn on<S: Simd<T = T>>(&mut self, simd: S) {
        let (s, stride) = (simd.narrow(), 19);
        let lanes = S::Narrow::LANES;
        // SAFETY: line x begins at x * stride, and there are numbers for 16 lines and 16 numbers after each beginning.
        let loaded = unsafe { s.load_transposed(self.numbers.as_ptr(), stride) };
        let mut rows = s.zero_square();
        for (x, row) in rows.as_mut().iter_mut().enumerate() {
            // SAFETY: as above.
            *row = unsafe { s.load(self.numbers.as_ptr().offset(x as isize * stride)) };
        }
        let turned = s.transpose(rows);
        for (x, (a, b)) in loaded.as_ref().iter().zip(turned.as_ref()).enumerate() {
            for y in 0..lanes {
                let expected = self.numbers[y * stride as usize + x].to_f64();
                self.ok &= s.to_array(*a)[y].to_f64() == expected && s.to_array(*b)[y].to_f64() == expected;
            }
        }
    }
}

#[test]
fn squares_are_transposed_in_registers() {
    for level in Level::available() {
        let mut narrow = Squares { ok: true, numbers: (0..400).map(|x| x as f32).collect() };
        f32::dispatch(level, With(&mut narrow));
        let mut wide = Squares { ok: true, numbers: (0..400).map(f64::from).collect() };
        f64::dispatch(level, With(&mut wide));
        assert!(narrow.ok && wide.ok, "{level:?}");
    }
}
