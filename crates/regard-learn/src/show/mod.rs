//! What the judge shows: in words, in numbers, in pictures.

/// The place of an entry in each dimension.
pub fn index(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut places = vec![0; shape.len()];
    for (place, size) in places.iter_mut().zip(shape).rev() {
        *place = at % size;
        at /= size;
    }
    places
}
