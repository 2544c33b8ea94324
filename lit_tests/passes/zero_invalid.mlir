// RUN: not pcp-opt %s --pcp-zero=stage=4 2>&1 | filecheck %s --check-prefix=STAGE
// RUN: not pcp-opt %s --pcp-zero=axis=tp 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not pcp-opt %s --pcp-zero 2>&1 | filecheck %s --check-prefix=ROLES

// STAGE: there are stages 1, 2 and 3
// AXIS: mesh @m has no axis "tp" (dp)
// ROLES: no argument or result has a role that stage 1 cuts (state)
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
