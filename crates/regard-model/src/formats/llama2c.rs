//! llama2.c's `.bin`, version 0: no magic number, no names. Seven little-endian i32, then all tensors in f32.
//!
//! ```text
//! dim hidden layers heads kv_heads vocab context            a negative vocab: a head of its own at the end
//! embedding [vocab, dim]
//! attention norms [layers, dim]    wq [layers, dim, dim]    wk wv [layers, kv_dim, dim]    wo [layers, dim, dim]
//! network norms [layers, dim]      gate [layers, hidden, dim]    down [layers, dim, hidden]    up [layers, hidden, dim]
//! last norm [dim]    two tables of rotary angles [context, head_dim / 2], not needed    (head [vocab, dim])
//! ```
//!
//! Tensors get the names that GGUF has for them.

use super::{Cursor, Kind, Place, Places, map, missing, one_file_archive};
use crate::error::{Error, Result};
use regard::MappedFile;
use regard_nn::tensors::{Source, Tensor};
use std::path::Path;

/// The seven fields of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Width of the stream.
    pub width: usize,
    /// Units of each network.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Tokens.
    pub vocab: usize,
    /// Positions.
    pub context: usize,
    /// The embedding is the head.
    pub tied: bool,
}

/// A mapped file.
#[derive(Debug)]
pub struct Llama2c {
    bytes: MappedFile,
    header: Header,
    places: Places,
}

impl Header {
    fn read(bytes: &[u8]) -> Option<Self> {
        const MOST: usize = 1 << 24;
        let mut cursor = Cursor::new(bytes);
        let mut numbers = [0i64; 7];
        for number in &mut numbers {
            *number = i64::from(cursor.i32()?);
        }
        let tied = numbers[5] > 0;
        let mut sizes = [0usize; 7];
        for (size, number) in sizes.iter_mut().zip(numbers) {
            *size = usize::try_from(number.abs()).ok()?;
        }
        // Only the vocabulary may be negative.
        let plain = numbers.iter().enumerate().all(|(i, n)| *n > 0 || (i == 5 && *n < 0)) && sizes.iter().all(|size| *size <= MOST);
        let [width, hidden, layers, heads, kv_heads, vocab, context] = sizes;
        let fits = plain && layers <= 4096 && width.is_multiple_of(heads) && heads.is_multiple_of(kv_heads);
        fits.then_some(Self { width, hidden, layers, heads, kv_heads, vocab, context, tied })
    }

    fn head_dim(&self) -> usize {
        self.width / self.heads
    }
}

impl Llama2c {
    /// Whether bytes could be such a file: the header makes sense.
    pub fn sniff(bytes: &[u8]) -> bool {
        Header::read(bytes).is_some()
    }

    /// Map a file.
    ///
    /// # Errors
    /// When it cannot be read, or is not as long as its header says.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = map(path)?;
        let header = Header::read(bytes.as_ref())
            .ok_or_else(|| Error::damaged(path, "its first 28 bytes are not the header of a llama2.c model of version 0"))?;
        let places = places(&header, bytes.as_ref().len())
            .map_err(|needed| Error::damaged(path, format!("it has {} bytes, and its header says {needed}", bytes.as_ref().len())))?;
        Ok(Self { bytes, header, places: Places::new(places) })
    }

    /// What the first bytes say.
    pub fn header(&self) -> &Header {
        &self.header
    }
}

/// Where everything lies, or how long the file would have to be.
fn places(header: &Header, len: usize) -> std::result::Result<Vec<Place>, u128> {
    let Header { width, hidden, layers, heads: _, kv_heads, vocab, context, tied } = *header;
    let kv = kv_heads * header.head_dim();
    let per_layer: [(&str, Vec<usize>); 9] = [
        ("attn_norm", vec![width]),
        ("attn_q", vec![width, width]),
        ("attn_k", vec![kv, width]),
        ("attn_v", vec![kv, width]),
        ("attn_output", vec![width, width]),
        ("ffn_norm", vec![width]),
        ("ffn_gate", vec![hidden, width]),
        ("ffn_down", vec![width, hidden]),
        ("ffn_up", vec![hidden, width]),
    ];
    let count = |shape: &[usize]| shape.iter().map(|n| *n as u128).product::<u128>();
    let blocks: u128 = per_layer.iter().map(|(_, shape)| count(shape) * layers as u128).sum();
    let tables = context as u128 * (header.head_dim() / 2) as u128 * 2;
    let table = vocab as u128 * width as u128;
    let needed = 28 + 4 * (table + blocks + width as u128 + tables + if tied { 0 } else { table });
    // llama2.c itself does not read the rotary tables of a tied model; some writers leave them out.
    let least = if tied { needed - 4 * tables } else { needed };
    if (len as u128) < least || len as u128 > needed {
        return Err(needed);
    }
    let (mut places, mut at) = (Vec::new(), 28);
    let mut put = |name: String, shape: &[usize]| {
        let bytes = 4 * shape.iter().product::<usize>();
        places.push(Place { name, shape: shape.to_vec(), kind: Kind::F32, bytes: at..at + bytes });
        at += bytes;
    };
    put("token_embd.weight".to_owned(), &[vocab, width]);
    for (name, shape) in &per_layer {
        (0..layers).for_each(|layer| put(format!("blk.{layer}.{name}.weight"), shape));
    }
    put("output_norm.weight".to_owned(), &[width]);
    if !tied {
        put("rope".to_owned(), &[2, context, header.head_dim() / 2]);
        put("output.weight".to_owned(), &[vocab, width]);
    }
    Ok(places)
}

impl Source for Llama2c {
    fn tensor(&self, name: &str) -> regard_nn::Result<Tensor<'_>> {
        let (_, place) = self.places.get(name).ok_or_else(|| missing(name))?;
        place.tensor(self.bytes.as_ref())
    }
}

one_file_archive!(Llama2c);
