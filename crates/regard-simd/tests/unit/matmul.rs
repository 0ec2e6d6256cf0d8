//! Products of matrices: exact in small integers, of any strides, on every level.

use super::*;
use ndarray::s;

fn numbers<T: Real>(rows: usize, cols: usize, seed: usize) -> Array2<T> {
    Array2::from_shape_fn((rows, cols), |(i, j)| T::from_f64(((i * 37 + j * 11 + seed) % 17) as f64 - 8.0))
}

/// Products of small integers have no rounding: every order of the sum is right to the last bit.
fn product_of_any_strides<T: Real>() {
    let shapes = [
        (1, 1, 1),
        (5, 7, 3),
        (33, 65, 17),
        (64, 0, 8),
        (1, 40, 9),
        (9, 40, 1),
        (101, 1030, 70),
        (3, 20, 2100),
        (7, 512, 16),
        (200, 513, 33),
    ];
    for (level, (m, k, n)) in Level::available().flat_map(|level| shapes.map(|shape| (level, shape))) {
        let (a, b, old) = (numbers::<T>(m, k, 1), numbers::<T>(k, n, 2), numbers::<T>(m, n, 3));
        let sum = |i: usize, j: usize| (0..k).map(|d| a[[i, d]].to_f64() * b[[d, j]].to_f64()).sum::<f64>();
        let product = Array2::from_shape_fn((m, n), |(i, j)| T::from_f64(sum(i, j)));
        let added = Array2::from_shape_fn((m, n), |(i, j)| old[[i, j]] + product[[i, j]]);
        // As they are, transposed, every second number, and backwards.
        let spread = |x: &Array2<T>| {
            let mut wide = Array2::from_elem((x.nrows(), 2 * x.ncols()), T::from_f64(99.0));
            wide.slice_mut(s![.., ..;2]).assign(x);
            wide
        };
        let (turned_a, turned_b) = (a.t().as_standard_layout().into_owned(), b.t().as_standard_layout().into_owned());
        let (wide_a, wide_b) = (spread(&a), spread(&b));
        let back_a = a.slice(s![..;-1, ..;-1]).as_standard_layout().into_owned();
        let lefts = [a.view(), turned_a.t(), wide_a.slice(s![.., ..;2]), back_a.slice(s![..;-1, ..;-1])];
        let rights = [b.view(), turned_b.t(), wide_b.slice(s![.., ..;2])];
        for (left, right) in lefts.iter().flat_map(|left| rights.iter().map(move |right| (*left, *right))) {
            let mut dst = old.clone();
            matmul_at(level, dst.view_mut(), Write::Add, left, right);
            assert_eq!(dst, added, "{level:?} {m} {k} {n}");
            matmul_at(level, dst.view_mut(), Write::Replace, left, right);
            assert_eq!(dst, product, "{level:?} {m} {k} {n}");
            let mut turned = old.t().as_standard_layout().into_owned();
            matmul_at(level, turned.view_mut().reversed_axes(), Write::Add, left, right);
            assert_eq!(turned.t(), added);
            let mut wide = spread(&old);
            matmul_at(level, wide.slice_mut(s![.., ..;2]), Write::Add, left, right);
            assert_eq!(wide, spread(&added), "and nothing between is touched");
            let mut packed = PackedMatrix::default();
            packed.pack_at(level, numbers::<T>(40, 50, 7).view());
            packed.pack_at(level, right);
            let mut dst = old.clone();
            packed.clone().matmul_at(level, dst.view_mut(), Write::Add, left);
            assert_eq!(dst, added);
            packed.matmul_at(level, dst.view_mut(), Write::Replace, left);
            assert_eq!(dst, product);
        }
    }
}

#[test]
fn product_of_any_strides_is_the_sum_over_the_depth() {
    product_of_any_strides::<f32>();
    product_of_any_strides::<f64>();
}

#[test]
fn bits_of_an_element_depend_on_its_row_and_column_alone() {
    let uneven = |rows, cols, seed: usize| {
        Array2::from_shape_fn((rows, cols), |(i, j)| (((i * 7919 + j * 104_729 + seed) % 1009) as f32 / 311.0).sin())
    };
    let (a, b) = (uneven(131, 700, 1), uneven(700, 75, 2));
    for level in Level::available() {
        let mut all = Array2::zeros((131, 75));
        matmul_at(level, all.view_mut(), Write::Replace, a.view(), b.view());
        for (rows, cols) in [(0..1, 0..75), (17..90, 3..40), (130..131, 74..75), (5..131, 16..75)] {
            let (a, b) = (a.slice(s![rows.clone(), ..]), b.slice(s![.., cols.clone()]));
            let mut part = Array2::zeros((rows.len(), cols.len()));
            matmul_at(level, part.view_mut(), Write::Replace, a, b);
            let expected = all.slice(s![rows, cols]);
            assert_eq!(part, expected, "{level:?}");
            let (turned, mut packed) = (a.t().as_standard_layout().into_owned(), PackedMatrix::default());
            packed.pack_at(level, b);
            part.fill(0.0);
            packed.matmul_at(level, part.view_mut(), Write::Replace, turned.t());
            assert_eq!(part, expected, "{level:?}");
        }
    }
}

#[test]
#[should_panic(expected = "differ in depth")]
fn depths_must_agree() {
    matmul(Array2::<f32>::zeros((2, 2)).view_mut(), Write::Replace, Array2::zeros((2, 3)).view(), Array2::zeros((2, 2)).view());
}

#[test]
#[should_panic(expected = "not neighbours")]
fn rows_of_a_packed_product_are_contiguous() {
    let mut packed = PackedMatrix::<f32>::default();
    packed.pack(Array2::zeros((3, 2)).view());
    packed.matmul(Array2::zeros((2, 2)).view_mut().reversed_axes(), Write::Replace, Array2::zeros((2, 3)).view());
}
