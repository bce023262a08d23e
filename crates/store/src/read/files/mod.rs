//! Reads images of files: the listing, recipes, and the pack extents of chunks.

mod image;
mod listing;
mod ranges;
mod recipe;
mod walk;
mod whereabouts;

pub use image::FilesImage;
pub(crate) use image::file_words;
pub use listing::Items;
pub use recipe::{Pieces, Read, recipes_below};
pub(crate) use walk::{RECIPE, listing_chunks, walk_files};
