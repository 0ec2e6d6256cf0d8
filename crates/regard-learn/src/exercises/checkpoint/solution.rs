/// An F16 number from its bits: 1 of the sign, 5 of the exponent, 10 of the fraction.
fn half(bits: u16) -> f32 {
    let fraction = f32::from(bits & 0x3ff);
    let size = match bits >> 10 & 0x1f {
        0 => fraction / 16_777_216.0,
        31 => if fraction == 0.0 { f32::INFINITY } else { f32::NAN },
        exponent => (1024.0 + fraction) * 2f32.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// A tensor of a safetensors file.
fn tensor(file: &[u8], name: &str) -> Vec<f32> {
    let size = u64::from_le_bytes(file[..8].try_into().expect("8 bytes")) as usize;
    let (header, data) = file[8..].split_at(size);
    let header = std::str::from_utf8(header).expect("JSON");
    let entry = &header[header.find(&format!("\"{name}\"")).expect("the tensor is there")..];
    let offsets = &entry[entry.find("\"data_offsets\"").expect("its place")..];
    let inner = &offsets[offsets.find('[').expect("a list") + 1..offsets.find(']').expect("its end")];
    let ends: Vec<usize> = inner.split(',').map(|word| word.trim().parse().expect("a number")).collect();
    data[ends[0]..ends[1]].chunks_exact(2).map(|pair| half(u16::from_le_bytes([pair[0], pair[1]]))).collect()
}

/// x [n, e] @ w [e, f]
fn matmul(x: &[f32], w: &[f32], e: usize, f: usize) -> Vec<f32> {
    let n = x.len() / e;
    (0..n * f).map(|at| (0..e).map(|c| x[at / f * e + c] * w[c * f + at % f]).sum()).collect()
}

fn norm(x: &[f32], gain: &[f32]) -> Vec<f32> {
    let e = gain.len();
    let row = |row: &[f32]| {
        let root = (row.iter().map(|x| x * x).sum::<f32>() / e as f32 + 1e-5).sqrt();
        row.iter().zip(gain).map(|(x, gain)| x / root * gain).collect::<Vec<f32>>()
    };
    x.chunks(e).flat_map(row).collect()
}

/// The rows of one head, turned by their positions.
fn turn(rows: &mut [f32], d: usize) {
    for (position, row) in rows.chunks_mut(d).enumerate() {
        for i in 0..d / 2 {
            let angle = (position as f64 / 10_000f64.powf(2.0 * i as f64 / d as f64)) as f32;
            let (a, b) = (row[i], row[i + d / 2]);
            row[i] = a * angle.cos() - b * angle.sin();
            row[i + d / 2] = a * angle.sin() + b * angle.cos();
        }
    }
}

pub fn checkpoint(path: &str, x: &[f32], [t, e, heads, layer]: [usize; 4]) -> Vec<f32> {
    let file = std::fs::read(path).expect("the file can be read");
    let [gain, w_qkv, w_out] =
        ["norm.gain", "qkv.weight", "out.weight"].map(|name| tensor(&file, &format!("blocks.{layer}.attention.{name}")));
    let qkv = matmul(&norm(x, &gain), &w_qkv, e, 3 * e);
    let d = e / heads;
    let columns = |from: usize| (0..t).flat_map(|i| qkv[i * 3 * e + from..i * 3 * e + from + d].to_vec()).collect::<Vec<f32>>();
    let mut joined = vec![0.0; t * e];
    for h in 0..heads {
        let (mut q, mut k, v) = (columns(h * d), columns(e + h * d), columns(2 * e + h * d));
        turn(&mut q, d);
        turn(&mut k, d);
        for i in 0..t {
            let score = |j: usize| (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum::<f32>() / (d as f32).sqrt();
            let scores: Vec<f32> = (0..=i).map(score).collect();
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f32 = scores.iter().map(|s| (s - top).exp()).sum();
            for (j, s) in scores.iter().enumerate() {
                for c in 0..d {
                    joined[i * e + h * d + c] += (s - top).exp() / total * v[j * d + c];
                }
            }
        }
    }
    let added = matmul(&joined, &w_out, e, e);
    x.iter().zip(&added).map(|(x, y)| x + y).collect()
}
