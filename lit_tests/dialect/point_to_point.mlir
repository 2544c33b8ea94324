// RUN: pcp-opt %s | filecheck %s
// RUN: PCP_ROUNDTRIP | filecheck %s
// RUN: pcp-opt %s --emit-bytecode | pcp-opt | filecheck %s
// RUN: pcp-opt %s --canonicalize --cse | filecheck %s

// CHECK-LABEL: func.func @ends
func.func @ends(%x: tensor<4xf32>) {
  // CHECK: "pcp.send"(%arg0) {channel = 1 : i64, to = @d1} : (tensor<4xf32>) -> ()
  "pcp.send"(%x) {channel = 1, to = @d1} : (tensor<4xf32>) -> ()
  // CHECK: "pcp.send"(%arg0) {channel = 2 : i64, to = 3 : i64, wire = f16} : (tensor<4xf32>) -> ()
  "pcp.send"(%x) {channel = 2, to = 3, wire = f16} : (tensor<4xf32>) -> ()
  // What nobody uses is received all the same: the sender waits for that.
  // CHECK: "pcp.recv"() {channel = 3 : i64, source = @d0} : () -> tensor<4xf32>
  %0 = "pcp.recv"() {channel = 3, source = @d0} : () -> tensor<4xf32>
  return
}
