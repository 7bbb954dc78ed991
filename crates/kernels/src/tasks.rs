//! Kernels written as functions.

/// Functions that run their bodies in the instruction set of a `level`: each is a [`Task`](crate::cpu::simd::Task) without its struct of arguments and its
/// `impl`. The set is the first argument of a body, and its type is in angle brackets; the references among the others live for `'a`, and what is behind
/// them may live for a second lifetime of its own.
macro_rules! task {
    ($(
        $(#[$doc:meta])*
        $vis:vis fn $name:ident<$set:ident $(, $long:lifetime)?>($simd:ident $(, $arg:ident: $type:ty)*) $(-> $out:ty)? $body:block
    )*) => {
        $(
            $(#[$doc])*
            #[allow(clippy::needless_lifetimes, reason = "of one reference or of many")]
            $vis fn $name<'a $(, $long)?>(level: $crate::cpu::simd::Level $(, $arg: $type)*) $(-> $out)? {
                struct Arguments<'a $(, $long)?> {
                    $($arg: $type),*
                }

                impl<'a $(, $long)?> $crate::cpu::simd::Task$(<$out>)? for Arguments<'a $(, $long)?> {
                    #[inline(always)]
                    fn run<$set: $crate::cpu::simd::Simd>(self, $simd: $set) $(-> $out)? {
                        let Self { $($arg),* } = self;
                        $body
                    }
                }

                $crate::cpu::simd::run(level, Arguments { $($arg),* })
            }
        )*
    };
}

pub(crate) use task;
