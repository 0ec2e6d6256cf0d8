use super::*;

#[test]
#[cfg_attr(miri, ignore = "Miri does not map files")]
fn a_mapped_file_is_its_bytes() {
    let path = std::env::temp_dir().join(format!("regard-map-{}", std::process::id()));
    std::fs::write(&path, b"regard").expect("a file");
    let map = MappedFile::open(&path).expect("mapped");
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(map.as_ref(), b"regard");
    assert!(MappedFile::open(&path).is_err());
    assert!(MappedFile::open(&std::env::temp_dir()).is_err());
}
