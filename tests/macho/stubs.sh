#!/usr/bin/env bash
# Writes text-based stubs (.tbd) for what the macOS program links with and the zig linker does not bring: libobjc and the
# frameworks. They name just the symbols and classes that Lily uses, so a link with them proves that nothing else is asked
# for; whether the system has these can only be seen on a Mac. Usage: stubs.sh FOLDER
set -euo pipefail
mkdir -p "$1/lib" "$1/frameworks"

# file, install name, symbols, Objective-C classes
stub() {
  cat >"$1" <<T
--- !tapi-tbd
tbd-version:     4
targets:         [ arm64-macos, arm64e-macos ]
install-name:    '$2'
current-version: 1
exports:
  - targets:         [ arm64-macos, arm64e-macos ]
    symbols:         [ $3 ]
    objc-classes:    [ $4 ]
...
T
}
framework() { # name, version in its path, symbols, classes
  mkdir -p "$1/$2.framework"
  stub "$1/$2.framework/$2.tbd" "/System/Library/Frameworks/$2.framework/Versions/$3/$2" "$4" "$5"
}

framework "$1/frameworks" Metal A "_MTLCreateSystemDefaultDevice" "MTLCompileOptions, MTLFunctionConstantValues"
framework "$1/frameworks" Foundation C "" "NSString, NSError, NSProcessInfo"
framework "$1/frameworks" CoreFoundation A "_CFRelease, _CFRetain" "NSObject, NSArray"
framework "$1/frameworks" CoreGraphics A "" ""
stub "$1/lib/libobjc.tbd" /usr/lib/libobjc.A.dylib "_objc_msgSend, _objc_retain, _objc_release, _objc_autorelease, \
_objc_autoreleasePoolPush, _objc_autoreleasePoolPop, _objc_retainAutoreleasedReturnValue, _objc_retainAutorelease, \
_objc_autoreleaseReturnValue, _objc_claimAutoreleasedReturnValue, _objc_getClass, _objc_lookUpClass, _objc_getProtocol, \
_objc_alloc, _objc_opt_class, _class_getInstanceMethod, _class_isMetaClass, _method_getName, _method_getTypeEncoding, \
_sel_registerName, _sel_getName, _object_getClass, _class_getName" "NSObject"
