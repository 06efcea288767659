//! Rows sorted by expert, and the blocks of the grouped products.
