//! A picture as a file: SVG, or PNG that is drawn from it.

use outlive_types::{Error, Result};
use resvg::{tiny_skia, usvg};
use std::path::Path;
use std::sync::Arc;

/// Pixels of a PNG for each unit of the SVG: sharp on screens of today.
const SCALE: f32 = 2.0;
/// Most pixels along one side.
const PIXELS_MAX: f32 = 16_384.0;

/// Kind of a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Vectors.
    Svg,
    /// Pixels.
    Png,
}

impl Kind {
    /// Returns the kind that the name of a file asks for; SVG without an extension.
    ///
    /// # Errors
    /// `Invalid` for another extension.
    pub fn of(file: &Path) -> Result<Kind> {
        match file.extension() {
            None => Ok(Kind::Svg),
            Some(extension) if extension.eq_ignore_ascii_case("svg") => Ok(Kind::Svg),
            Some(extension) if extension.eq_ignore_ascii_case("png") => Ok(Kind::Png),
            Some(_) => Err(Error::invalid(format!(
                "cannot draw into {}: a picture is SVG or PNG; use a name that ends in .svg or .png",
                file.display()
            ))),
        }
    }
}

/// Writes a picture to a file, as its name asks for.
///
/// # Errors
/// `Invalid` as [`Kind::of`], and if the file cannot be written.
pub fn write(file: &Path, svg: &str) -> Result<()> {
    let bytes = match Kind::of(file)? {
        Kind::Svg => svg.as_bytes().to_vec(),
        Kind::Png => png(svg)?,
    };
    std::fs::write(file, bytes).map_err(|e| Error::io_named("writing the picture", file, &e))
}

/// Returns a picture as PNG. Its font is part of the program, so that it looks the same everywhere.
///
/// # Errors
/// `Bug` for text that is no SVG; `Invalid` for a picture that is too large.
pub fn png(svg: &str) -> Result<Vec<u8>> {
    let bug =
        |what: &dyn std::fmt::Display| Error::bug(format!("a picture cannot be drawn: {what}"));
    let mut options = usvg::Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_font_source(usvg::fontdb::Source::Binary(Arc::new(
        epaint_default_fonts::UBUNTU_LIGHT,
    )));
    let family = fonts.faces().next().and_then(|face| face.families.first()).map(|it| it.0.clone());
    fonts.set_sans_serif_family(family.unwrap_or_default());
    let tree = usvg::Tree::from_str(svg, &options).map_err(|error| bug(&error))?;
    let (wide, tall) = (tree.size().width() * SCALE, tree.size().height() * SCALE);
    if wide > PIXELS_MAX || tall > PIXELS_MAX {
        return Err(Error::invalid("the picture is too large for PNG: draw it into a .svg file"));
    }
    let mut pixels = tiny_skia::Pixmap::new(wide.ceil() as u32, tall.ceil() as u32)
        .ok_or_else(|| bug(&"it has no size"))?;
    let scale = tiny_skia::Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, scale, &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| bug(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ask_for_kinds() {
        for (name, kind) in [("a", Kind::Svg), ("a.SVG", Kind::Svg), ("b.c.png", Kind::Png)] {
            assert_eq!(Kind::of(Path::new(name)).unwrap(), kind, "{name}");
        }
        assert!(Kind::of(Path::new("a.pdf")).unwrap_err().message().contains(".png"));
    }

    #[test]
    fn a_png_has_the_shapes_and_the_letters() {
        let svg = |inner: &str| {
            format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 40 20\" \
                 font-family=\"sans-serif\" font-size=\"12\">\
                 <rect width=\"100%\" height=\"100%\" fill=\"white\"/>{inner}</svg>"
            )
        };
        let pixels = |inner: &str| {
            let bytes = png(&svg(inner)).unwrap();
            tiny_skia::Pixmap::decode_png(&bytes).unwrap()
        };
        let empty = pixels("");
        assert_eq!((empty.width(), empty.height()), (80, 40));
        let is_white = |pixel: &tiny_skia::PremultipliedColorU8| pixel.red() == 255;
        assert!(empty.pixels().iter().all(is_white));
        let red = pixels("<rect x=\"10\" y=\"5\" width=\"10\" height=\"10\" fill=\"#f00\"/>");
        let count = red.pixels().iter().filter(|pixel| pixel.green() == 0).count();
        assert_eq!(count, 20 * 20);
        let dark =
            |inner: &str| pixels(inner).pixels().iter().filter(|pixel| !is_white(pixel)).count();
        let (one, two) =
            (dark("<text x=\"2\" y=\"14\">1</text>"), dark("<text x=\"2\" y=\"14\">88</text>"));
        assert!(0 < one && one < two, "{one} {two}");
        assert!(png("<svg").is_err());
    }
}
