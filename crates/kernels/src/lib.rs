//! The operations Bellows owns.
