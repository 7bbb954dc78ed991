//! On CubeCL devices weights are dense matrices by the time they are multiplied.

use burn_cubecl::CubeBackend;

use super::ProductOps;

impl ProductOps for CubeBackend {}
