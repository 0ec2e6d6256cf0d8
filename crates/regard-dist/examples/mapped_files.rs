//! Attention over keys and values that lie in files, which may be larger than memory:
//! `cargo run -p regard-dist --example mapped_files -- 1000000`.
//!
//! The files are mapped, and read piece by piece; what is kept is the running state of the rows. They are written sparsely, so that a trial
//! takes no disk: of every 65,536 tokens, one has keys and values of its own, the others are zeros.

use ndarray::{Array4, ArrayView4, s};
use regard::{Attention, MappedFile};
use regard_dist::InPieces;
use std::error::Error;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const DIM: usize = 64;
const PIECE: usize = 4096;

fn write(path: &Path, tokens: usize, number: impl Fn(usize, usize) -> f32) -> Result<(), Box<dyn Error>> {
    let mut file = File::create(path)?;
    file.set_len((tokens * DIM * size_of::<f32>()) as u64)?;
    for token in (0..tokens).step_by(65_536) {
        file.seek(SeekFrom::Start((token * DIM * size_of::<f32>()) as u64))?;
        let row: Vec<f32> = (0..DIM).map(|d| number(token, d)).collect();
        file.write_all(bytemuck::cast_slice(&row))?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let tokens: usize = std::env::args().nth(1).map_or(Ok(200_000), |count| count.parse())?;
    let folder = std::env::temp_dir().join(format!("regard-mapped-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let paths = [folder.join("k.bin"), folder.join("v.bin")];
    write(&paths[0], tokens, |token, d| ((token / 65_536 + d) as f32).sin())?;
    write(&paths[1], tokens, |token, _| (token / 65_536 + 1) as f32)?;
    let [k, v] = [MappedFile::open(&paths[0])?, MappedFile::open(&paths[1])?];
    let [k, v]: [&[f32]; 2] = [bytemuck::cast_slice(k.as_ref()), bytemuck::cast_slice(v.as_ref())];
    let shape = (1, 1, tokens, DIM);
    let (k, v) = (ArrayView4::from_shape(shape, k)?, ArrayView4::from_shape(shape, v)?);

    let q = Array4::from_shape_fn((1, 1, 4, DIM), |(_, _, i, d)| 3.0 * ((i + d) as f32).sin());
    let attention = Attention::new();
    let mut rows = attention.begin(&q, 0, [1, 1, 4, tokens]);
    for first in (0..tokens).step_by(PIECE) {
        let keys = s![.., .., first..tokens.min(first + PIECE), ..];
        rows.absorb(first, k.slice(keys), v.slice(keys))?;
    }
    let saved = rows.finish()?;
    println!("{tokens} keys and values, {} MB of files", (2 * tokens * DIM * size_of::<f32>()) >> 20);
    for (row, lse) in saved.out.slice(s![0, 0, .., 0]).iter().zip(saved.lse().iter()) {
        println!("out {row:.6}, lse {lse:.6}");
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
